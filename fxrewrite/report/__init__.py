"""Sites, reports, reasons, and how they are shown."""

from .findings import Capture
from .reasons import Reason
from .report import Report, joined
from .site import KINDS, Operation, Refusal, Site

__all__ = ["KINDS", "Capture", "Operation", "Reason", "Refusal", "Report", "Site", "joined"]
