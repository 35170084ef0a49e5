"""How fields are declared: `field`, `unset`, `group`, what is allowed of them, and the table they make."""

from configs.schema.allowed import above, at_least, choice, each, interval, rule
from configs.schema.field import ARGUMENT, NONE, STATIC, Field, field, unset
from configs.schema.table import Group, Schema, group

__all__ = [
    "ARGUMENT",
    "NONE",
    "STATIC",
    "Field",
    "Group",
    "Schema",
    "above",
    "at_least",
    "choice",
    "each",
    "field",
    "group",
    "interval",
    "rule",
    "unset",
]
