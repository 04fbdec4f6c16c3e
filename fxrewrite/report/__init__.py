"""Sites, reports, reasons, and how they are shown."""

from .findings import Capture
from .reasons import Reason
from .report import JoinedReport, Report
from .site import KINDS, Operation, Refusal, Site

__all__ = ["KINDS", "Capture", "JoinedReport", "Operation", "Reason", "Refusal", "Report", "Site"]
