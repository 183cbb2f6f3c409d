# SPDX-License-Identifier: Apache-2.0
"""The report of a run: plain data and its forms."""
