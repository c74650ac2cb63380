"""Arguments and results of jobs as bytes (pure)."""

from __future__ import annotations

import contextlib
import inspect
import json
import pickle
import pickletools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError, validate_call
from pydantic_core import to_json

from heliograph.base.errors import BadRequestError, ProtocolError, failure_text
from heliograph.tasks.options import Encoding

SHOWN_BYTES, SHOWN_CHARACTERS = 4 << 10, 2_000  # of arguments  # I15
_VALUE = re.compile(r"INT\d?$|LONG[14]?$|UNICODE8?$|STRING$|FLOAT$|BYTES8?$")  # names of opcodes with a value


def encode(value: Any, encoding: Encoding, field: str) -> bytes:
    """Return the bytes of arguments or of a result.

    Args:
        field: Name of the value, for the error.

    Raises:
        BadRequestError: The value does not pickle, or JSON cannot express it.
    """
    try:
        return to_json(value) if encoding == "json" else pickle.dumps(value, protocol=5)
    except Exception as error:  # it runs methods of the values' classes
        text = f"the {field} cannot be written as {encoding}: {failure_text(error)}"
        raise BadRequestError(text, field=field) from error


def decode(data: bytes, encoding: str, field: str) -> Any:
    """Return the value that was encoded; of JSON: dicts, lists, texts and numbers.

    Raises:
        ProtocolError: The bytes cannot be read, or the encoding is not known.
    """
    try:
        if encoding == "json":
            return json.loads(data)
        if encoding == "pickle":
            return pickle.loads(data)
    except Exception as error:  # unpickling runs the constructors of the values' classes
        raise ProtocolError(f"the {field} cannot be read as {encoding}: {error!r:.500}", field=field) from error
    raise ProtocolError(f"the {field} is written as {encoding!r}", field=field, limit="pickle, json")


def arguments_of(data: bytes, encoding: str) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the positional and the named arguments of a job.

    Raises:
        ProtocolError: The bytes are none.
    """
    found = decode(data, encoding, "arguments")
    if encoding == "json" and isinstance(found, dict):
        found = [found.get("args", []), found.get("kwargs", {})]
    if (
        not isinstance(found, list | tuple)
        or len(found) != 2
        or not isinstance(found[0], list | tuple)
        or not isinstance(found[1], dict)
    ):
        raise ProtocolError("the arguments are no list with a mapping", field="arguments")
    return found[0], found[1]


def shown_arguments(data: bytes, encoding: str) -> str:
    """Return the arguments of a job as text for people, cut. Nothing that a pickle says is run: the text has the values
    in it, one after the other, and the names of classes."""
    head = data[:SHOWN_BYTES]
    if encoding != "pickle":
        text = head.decode("utf-8", "replace")
    else:
        found: list[str] = []
        with contextlib.suppress(Exception):  # of bytes of anyone, or cut: what was found is shown
            found.extend(_value(each[1]) for each in pickletools.genops(head) if _VALUE.search(each[0].name))
        text = " ".join(found)
    return text if len(text) <= SHOWN_CHARACTERS and len(data) <= SHOWN_BYTES else text[:SHOWN_CHARACTERS] + "..."


def _value(found: Any) -> str:
    if isinstance(found, int) and found.bit_length() > 64:
        return f"<an integer of {found.bit_length()} bits>"  # its digits take the square of their number
    return f"{found!r:.200}"


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with arguments that pydantic makes of JSON, as its annotations say."""
    return validate_call(config=ConfigDict(arbitrary_types_allowed=True))(function)


def result_of(data: bytes, encoding: Encoding, function: Callable[..., Any]) -> Any:
    """Return the result that ``encode`` wrote; of JSON, as the function's annotation says.

    Raises:
        ProtocolError: The bytes cannot be read, or do not fit.
    """
    value = decode(data, encoding, "result")
    if encoding == "pickle":
        return value
    annotation = inspect.signature(function, eval_str=True).return_annotation
    if annotation in (inspect.Signature.empty, None):
        return value
    try:
        return TypeAdapter(annotation).validate_python(value)
    except ValidationError as error:
        raise ProtocolError(f"the result does not fit {annotation}: {error}", field="result") from error
