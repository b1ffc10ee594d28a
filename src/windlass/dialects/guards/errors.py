"""The errors that the document names. Each is also the error of windlass that fits it."""

from __future__ import annotations

from windlass.errors import BadInput, Conflict, NotFound, WrongState


class InvalidOperationError(WrongState):
    """The operation breaks a rule; nothing was changed."""

    code, status = "invalid_operation", 400

    def __init__(self, message: str, *, hint: str = "Only a job that is QUEUED can be changed.") -> None:
        super().__init__(message, hint=hint)


class InvalidValueError(InvalidOperationError, BadInput):
    """A member of a request has no valid value; nothing was changed."""

    code, status = "invalid_value", 422

    def __init__(self, member: str, message: str, *, hint: str = "Correct the value.") -> None:
        super().__init__(message, hint=hint)
        self.member = member


class _NotFoundError(NotFound):
    def __init__(self, message: str, *, hint: str = "Check the id; ended jobs are removed after their retention.") -> None:
        super().__init__(message, hint=hint)


class JobNotFoundError(_NotFoundError):
    """There is no such job."""


class JobRunNotFoundError(_NotFoundError):
    """There is no such run of a job."""


class TemplateNotFoundError(NotFound):
    """There is no such template."""

    def __init__(self, message: str, *, hint: str = "List the templates to see those there are.") -> None:
        super().__init__(message, hint=hint)


class ReservationConflictError(Conflict):
    """The next slot was asked for without waiting, and another caller has it."""

    code = "reservation_conflict"

    def __init__(self, message: str, *, hint: str = "Wait for it, or try again later.") -> None:
        super().__init__(message, hint=hint)
