# SPDX-License-Identifier: Apache-2.0
"""Probes: each reads one place of the user's program or machine, and knows nothing of what becomes of its readings."""
