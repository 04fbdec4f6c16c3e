"""Sites, reports, reasons, and how they are shown."""

from .reasons import Reason
from .report import Capture, Report
from .site import KINDS, Operation, Refusal, Site

__all__ = ["KINDS", "Capture", "Operation", "Reason", "Refusal", "Report", "Site"]
