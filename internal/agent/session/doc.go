// Package session keeps the agent in touch with the operator: one stream after another, for ever,
// each of them authenticated with what the token and CA files hold at that moment.
//
// It carries reports and directives; what they mean is not its business.
package session
