"""From a folder of pictures to a search page: train, index, search, serve.

    python examples/folder_to_search_page.py my_pictures/ --out search/

my_pictures/ has one folder per class. At the end, open the printed address in a browser; Ctrl-C stops the server.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from lookalike import index
from lookalike.server import create_app
from lookalike.training import Settings, train


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train on a folder of pictures and serve a search page for it.")
    parser.add_argument("folder", type=Path, help="folder of class folders")
    parser.add_argument("--out", type=Path, default=Path("search"), help="folder for the run and the index")
    parser.add_argument("--backbone", default="efficientnet_lite0")
    parser.add_argument("--size", type=int, default=224, help="side of the input in pixels")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--no-serve", action="store_true", help="stop before the server starts")
    options = parser.parse_args(argv)

    # 1. Train. Without a GPU a pretrained backbone stays frozen, and only the head is trained: minutes on a laptop.
    run = options.out / "run"
    settings = Settings(
        data=str(options.folder),
        out=run,
        backbone=options.backbone,
        size=options.size,
        pooling="gsp",
        loss="proxy-anchor",
        steps=options.steps,
        batch_size=options.batch_size,
    )
    metrics = train(settings)
    print(f"MAP@R on held-out pictures: {metrics['best']['MAP@R']:.3f}")

    # 2. Index every picture of the folder. The index keeps a copy of the model.
    with index.create(options.out / "index", run) as idx:
        model = idx.model()
        changes = index.sync(idx, model, options.folder)
        print(f"indexed {changes.added} pictures with {len(idx.labels())} labels")

        # 3. Search with a picture. Here it is one of the folder itself, so it finds itself first.
        picture = sorted(options.folder.glob("*/*"))[0]
        for hit in idx.search(model.embed(picture), k=5)[0]:
            print(f"{hit.distance:.4f}  {hit.item.label:<12}  {hit.item.path}")

        # 4. Serve. Only this machine can connect; `lookalike serve --host` opens it to others, with keys.
        if not options.no_serve:
            print(f"open http://127.0.0.1:{options.port}/")
            uvicorn.run(create_app(idx, model), port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
