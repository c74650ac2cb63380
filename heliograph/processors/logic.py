"""The handlers of a processor, which a user writes, and their declarations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from heliograph.base.errors import BadRequestError
from heliograph.client.schemas.choice import schema_of
from heliograph.processors.group import StateForm
from heliograph.processors.windows import Window

if TYPE_CHECKING:
    from heliograph.client.aio.consumer.message import Message
    from heliograph.client.schemas.schema import Schema
    from heliograph.processors.context import Context

_HANDLERS = ("on_message", "on_batch", "on_timer", "on_window", "on_late")


class Processor:
    """The base of a processor: override ``on_message`` or ``on_batch``, as functions or as coroutines.

    An instance makes one object of the class, without arguments, for all partitions that it owns. Functions run on one
    thread, one at a time; coroutines of different partitions take turns where they await. Effects of a handler by its
    context are kept
    if the handler returns, and dropped if it raises; then it is called again.

    Attributes:
        state: The type of the state of a key: ``dict`` (JSON of any form), ``str``, ``bytes``, a pydantic model or a
            dataclass; None: there is no state. A new key has what the type makes without arguments, or else None.
        state_schema: How states become bytes; None: as the type says.
        window: How event time is divided; then each key has a state in each window.
    """

    state: ClassVar[Any] = None
    state_schema: ClassVar[Any] = None
    window: ClassVar[Window | None] = None

    def on_message(self, message: Message[Any], context: Context) -> Any:
        """Handle a message; with windows, once for each window that it belongs to.

        Args:
            message: From any of the inputs.
            context: The state of its key, and what can be done.
        """
        raise NotImplementedError

    def on_batch(self, messages: Sequence[Message[Any]], contexts: Sequence[Context]) -> Any:
        """Handle several messages together. A batch that failed is handled message by message.

        Args:
            messages: Of one input, in order, at most ``batch``.
            contexts: One for each message; contexts of one key share its state.
        """
        raise NotImplementedError

    def on_timer(self, name: str, context: Context) -> Any:
        """Handle a timer that is due.

        Args:
            name: Of the timer.
            context: The state of the key that set it.
        """
        raise NotImplementedError

    def on_window(self, context: Context) -> Any:
        """Handle the end of a window of a key; then its state is deleted.

        Args:
            context: The state of the key in the window.
        """
        raise NotImplementedError

    def on_late(self, message: Message[Any], context: Context) -> Any:
        """Handle a message all of whose windows are over. Without this it is counted.

        Args:
            message: From any of the inputs.
            context: Has no state.
        """
        raise NotImplementedError


class Logic:
    """The handlers of a processor, by their names; None for a missing handler.

    Args:
        made: The processor, or a plain function of a message and a context.
        inputs: The schemas of the inputs, by full names.
        outputs: The schemas of outputs, by full names.

    Raises:
        BadRequestError: It has no handler of messages, or two; some are coroutines and others not; or it has a handler
            that goes with windows, and no windows.
    """

    def __init__(
        self,
        made: Processor | Callable[..., Any],
        inputs: Mapping[str, Schema[Any] | None],
        outputs: Mapping[str, Schema[Any] | None],
    ) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.window: Window | None = None
        self.form = StateForm(None, None)
        found: dict[str, Callable[..., Any] | None] = dict.fromkeys(_HANDLERS)
        if isinstance(made, Processor):
            kind = type(made)
            for name in _HANDLERS:
                if getattr(kind, name) is not getattr(Processor, name):
                    found[name] = getattr(made, name)
            self.window = kind.window
            if kind.state is not None:
                self.form = StateForm(kind.state, schema_of(kind.state_schema or kind.state))
        else:
            found["on_message"] = made
        self.on_message, self.on_batch = found["on_message"], found["on_batch"]
        self.on_timer, self.on_window, self.on_late = found["on_timer"], found["on_window"], found["on_late"]
        if (self.on_message is None) == (self.on_batch is None):
            raise BadRequestError("a processor has either on_message or on_batch", field="function")
        if self.window is None and (self.on_window or self.on_late):
            raise BadRequestError("on_window and on_late need window = heliograph.Window(...)", field="window")
        if self.window is not None and self.on_message is None:
            raise BadRequestError("windows go with on_message, not with on_batch", field="window")
        kinds = {inspect.iscoroutinefunction(each) for each in found.values() if each is not None}
        if len(kinds) > 1:
            raise BadRequestError("the handlers of a processor are all coroutines, or none is", field="function")
        self.is_async = kinds.pop()


def check_kind(kind: type[Processor] | Callable[..., Any]) -> None:
    """Refuse a value that is no processor, before anything runs; errors are those of ``Logic``."""
    if isinstance(kind, type) and issubclass(kind, Processor):
        Logic(object.__new__(kind), {}, {})  # its constructor may load a model
    elif inspect.isroutine(kind):
        Logic(kind, {}, {})
    else:
        raise BadRequestError(f"{kind!r} is no function and no subclass of heliograph.Processor", field="function")


def made_of(kind: type[Processor] | Callable[..., Any]) -> Processor | Callable[..., Any]:
    """Return the processor of a class, or the function itself.

    Raises:
        BadRequestError: The class cannot be made without arguments.
    """
    if not isinstance(kind, type):
        return kind
    try:
        made: Processor = kind()
    except TypeError as error:
        raise BadRequestError(f"{kind.__name__} cannot be made: {error}", field="function") from error
    return made
