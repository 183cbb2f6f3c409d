# SPDX-License-Identifier: Apache-2.0
"""One module for each thought: what holds a training up, how that is told, and what to do about it."""
