# lookalike serve on the CPU.
#
#   docker build -t lookalike .
#   docker run -p 8000:8000 -e LOOKALIKE_READ_KEY=... -v "$PWD/mine.idx:/index" lookalike
#
# The server listens on all addresses of the container and therefore needs a key of at least 16 characters.
# LOOKALIKE_WRITE_KEY also allows adding and deleting. The user of the container (uid 1000) must be able to read and
# write the index folder. Mount the pictures at the path they were indexed from, for example
# -v "$PWD/my_pictures:$PWD/my_pictures:ro". Further options of `lookalike serve` go after the name of the image.

FROM python:3.12-slim

# Index with CPU builds of torch. Where it cannot be reached: --build-arg TORCH_INDEX_URL=https://pypi.org/simple
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# torch changes rarely: its layer stays cached while the library changes.
RUN pip install --index-url "$TORCH_INDEX_URL" torch torchvision

COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
RUN pip install "/source[serve]" && rm -rf /source

RUN useradd --create-home --uid 1000 lookalike
USER lookalike
WORKDIR /home/lookalike

EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]

ENTRYPOINT ["lookalike", "serve", "/index", "--host", "0.0.0.0", "--port", "8000"]
