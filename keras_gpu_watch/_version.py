# SPDX-License-Identifier: Apache-2.0
"""The version, in one line."""

__version__ = "0.1.0.dev0"
