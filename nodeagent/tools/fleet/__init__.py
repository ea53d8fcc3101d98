"""`nodeagent fleet`: comparison of several nodes, from captures or over ssh. The tool places no pods, because this is the task of a
scheduler.
"""
