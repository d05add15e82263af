"""Homework that grades itself: a student's functions against the exact law, and the name of what is wrong. No torch.

solutions: the right solution, made of parts that a mistake replaces
mistakes: the mistakes that have a name, each as a wrong solution
laws: what a function does over all coins
questions: what each function is asked
student: a student's file in a process of its own; child: that process
judging: answers compared, the mistake, its smallest counterexample, points
"""
