"""From the equations of an op to those of its gradient, a derivative of syntax trees below the rule language
(docs/gradients.md).

operators what the operators of equations are for tensors
tape      equations as steps of one op each, ops of other definitions written out
table     the transposition table: what the gradient of a result gives to each operand, one equation for each op
literals  what is decided by numbers, texts and lists alone
reverse   the steps taken back, and the derivative of calculus where each element is computed by itself
algebra   sums, products and powers, simplified as they are made
"""
