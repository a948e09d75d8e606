"""What the configuration file's schema is made of: groups, settings with a unit, checked kinds of text."""

from ipaddress import ip_network
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from isochrone.config.problems import nearest
from isochrone.scheduling.parts import PARTS


class Group(BaseModel):
    """One mapping of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def entry(default: Any, unit: str, meaning: str, **bounds: Any) -> Any:
    """A setting with its unit, its meaning and its bounds (`gt`, `ge`, `le`)."""
    return Field(default=default, description=meaning, json_schema_extra={"unit": unit}, **bounds)


def instance_url(url: str) -> str:
    """`http://host:port`, checked and without a trailing slash; raises ValueError that says what is wrong."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected http://HOST:PORT or https://HOST:PORT")
    if parts.username or parts.password:
        raise ValueError("no user name or password in a URL; use `credentials`")
    if parts.query or parts.fragment:
        raise ValueError("expected a URL without query or fragment")
    if not 0 < (parts.port or {"http": 80, "https": 443}[parts.scheme]) < 65536:
        raise ValueError("the port must be between 1 and 65535")
    return url.rstrip("/")


def secret_reference(text: str) -> str:
    """`$NAME` or `file:PATH`: the file itself never holds a secret."""
    if not (text.startswith("$") and len(text) > 1) and not (text.startswith("file:") and len(text) > 5):
        raise ValueError("expected $NAME (an environment variable) or file:PATH, not the secret itself")
    return text


def host_pattern(text: str) -> str:
    """A pattern of host names, or with a slash a range of addresses; raises ValueError for a range that is none."""
    if "/" in text:
        ip_network(text)
    return text


def part(name: str) -> str:
    """A part of the scheduler that can be left out; raises ValueError with the nearest name."""
    if name not in PARTS:
        raise ValueError(f"no such part of the scheduler; {nearest(name, sorted(PARTS))}")
    return name


Url = Annotated[str, AfterValidator(instance_url)]
HostPattern = Annotated[str, AfterValidator(host_pattern)]
Secret = Annotated[str, AfterValidator(secret_reference)]
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[\w.:@+\[\]-]+$")]
RouteName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w.-]+$")]
Part = Annotated[str, AfterValidator(part)]
Port = Annotated[int, Field(ge=0, le=65535)]
