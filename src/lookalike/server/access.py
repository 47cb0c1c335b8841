"""Admission of requests: keys, wrong keys, collections and quotas."""

import ipaddress
import logging
from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeVar

from starlette.requests import Request

from lookalike.server.errors import ApiError
from lookalike.server.keys import Access, Grant, Keys
from lookalike.server.quotas import MOST_BUCKETS, Buckets, Quota, too_many

logger = logging.getLogger(__name__)
T = TypeVar("T")
KEY_HEADER = "X-API-Key"
WRONG_KEYS = 20  # per address and minute; then requests of that address with another key are refused


class AccessControl:
    """Decides which requests are admitted.

    Args:
        keys: The accepted keys.
        quota: Quota of keys that have no other.
        collection: Name of the collection that is served.
        largest: Bytes of the largest request.
        proxies: Addresses whose ``X-Forwarded-For`` is believed.
        buckets: Where use is counted.
    """

    def __init__(
        self,
        keys: Keys,
        quota: Quota,
        collection: str,
        largest: int,
        proxies: Iterable[str] = (),
        buckets: Buckets | None = None,
    ) -> None:
        self.keys = keys
        self.quota = quota
        self.collection = collection
        self.largest = largest
        self.proxies = {ipaddress.ip_address(proxy) for proxy in proxies}
        self.buckets = buckets or Buckets()
        self._proven: OrderedDict[tuple[str, str], None] = OrderedDict()  # addresses and keys they used rightly
        self._throttled: OrderedDict[str, None] = OrderedDict()  # addresses whose throttling is in the log

    def grant(self, request: Request) -> Grant:
        """Return what the key of a request allows.

        An address that sent many wrong keys is refused with any key that it has not used before: a guess is of no use,
        and those who share the address with a guesser are not shut out.

        Raises:
            ApiError: 429 after too many wrong keys.
        """
        given = key_of(request)
        grant = self.keys.grant(given)
        if not given or not self.keys:
            return grant
        address = self.address_of(request)
        wait = self.buckets.wait(("wrong", address), 1, WRONG_KEYS)
        proven = (address, grant.key) in self._proven
        if wait and not proven:
            if address not in self._throttled:
                _remember(self._throttled, address)
                logger.warning("too many wrong keys from %s: it may only use keys that it has used before", address)
            raise too_many("too many wrong keys", wait)
        if grant.access is Access.NONE:
            self._throttled.pop(address, None)
            self.buckets.take(("wrong", address), 1, WRONG_KEYS)
            logger.warning("wrong key from %s", address)
        elif not proven:
            _remember(self._proven, (address, grant.key))
        return self._within_collection(grant)

    def admit(self, request: Request, least: Access, *, adds: bool = False) -> None:
        """Check the key of a request and charge its quota, before the body is read.

        Args:
            request: The request.
            least: The access that it needs.
            adds: Whether it adds a picture.

        Raises:
            ApiError: 401 without a valid key, 403 if the key does not allow it, 429 beyond its quota.
        """
        grant = self.grant(request)
        if grant.access is Access.NONE and grant.key:
            raise ApiError(403, "other_collection", "this key is for other collections")
        if grant.access is Access.NONE:
            message = f"a key is needed in the header {KEY_HEADER}"
            raise ApiError(401, "key_needed", message, {"WWW-Authenticate": f'ApiKey header="{KEY_HEADER}"'})
        if grant.access < least:
            raise ApiError(403, "read_only", "this key may read but not write")
        self._charge(request, grant, least, adds)

    def _within_collection(self, grant: Grant) -> Grant:
        if grant.collections and self.collection not in grant.collections:
            return grant._replace(access=Access.NONE)
        return grant

    def _charge(self, request: Request, grant: Grant, least: Access, adds: bool) -> None:
        quota = self.quota.updated(grant.quota)
        amounts: dict[str, float] = {"reads": 1}
        if least is Access.WRITE:
            amounts = {"writes": 1}
            if adds:
                amounts["items"] = 1
        if request.method == "POST":
            amounts["megabytes"] = self._declared_bytes(request) / 1e6
        charges = []
        client = grant.key or self.address_of(request)
        for name, amount in amounts.items():
            per_minute = getattr(quota, name)
            if per_minute is None:
                continue
            wait = self.buckets.wait((name, client), amount, per_minute)
            if wait:
                raise too_many(f"the quota is {per_minute:g} {name} per minute", wait)
            charges.append(((name, client), amount, per_minute))
        for charge in charges:  # only if none is exceeded
            self.buckets.take(*charge)

    def address_of(self, request: Request) -> str:
        """Return the address of the client: of IPv6 the first 64 bits, which belong to one customer.

        A proxy that the user named gives the client as the last entry of ``X-Forwarded-For``. Anybody else could
        invent a new address for every request.
        """
        peer = request.client.host if request.client else ""
        try:
            address = ipaddress.ip_address(peer)
            forwarded = request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
            if address in self.proxies and forwarded:
                address = ipaddress.ip_address(forwarded)
        except ValueError:
            return peer
        if address.version == 6 and not address.is_loopback:
            return str(ipaddress.ip_network((address, 64), strict=False).network_address)
        return str(address)

    def _declared_bytes(self, request: Request) -> int:
        digits = request.headers.get("content-length", "").lstrip("0") or "0"
        if "content-length" not in request.headers or not digits.isdecimal() or len(digits) > 18:
            return self.largest
        return min(int(digits), self.largest)


def key_of(request: Request) -> str | None:
    """Return the key that a request carries; None without one."""
    key = request.headers.get(KEY_HEADER)
    if not key:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            key = token
    return key


def _remember(entries: "OrderedDict[T, None]", entry: "T") -> None:
    entries[entry] = None
    if len(entries) > MOST_BUCKETS:
        entries.popitem(last=False)
