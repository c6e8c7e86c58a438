"""The look that the demo, replays and the service's pages share."""

READ_COLOR, WRITE_COLOR, MARK_COLOR = "#3b82f6", "#ef4444", "#f5b642"
STYLE = """
.dp p { line-height: 1.6; margin: .1rem 0; overflow-wrap: anywhere }
.dp-target { font-size: 1.3rem; font-weight: 600 }
.dp-source { opacity: .75 }
.dp-word { cursor: help; border-bottom: 1px dotted currentColor }
.dp-word:focus { outline: 2px solid #f5b642 }
.dp-stats, .dp-hint { font-size: .9rem; opacity: .75; margin: .2rem 0 }
.dp-scroll { overflow-x: auto }
.dp-moving span { opacity: 0; animation: dp-appear .15s forwards }
@keyframes dp-appear { to { opacity: 1 } }
"""
