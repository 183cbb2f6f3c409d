# SPDX-License-Identifier: Apache-2.0
"""The user's input pipeline: its stages in his words, and what each of them does while the training runs."""
