package allocation

// Rule names a rule of docs/fleet.md.
type Rule uint8

// The rules.
const (
	RuleNone Rule = iota
	RuleGangClass
	RuleKeepsRunning
	RuleGangsFirst
	RuleLendsAndBorrows
	RuleNoHostage
	RuleReservation
	RuleWholeJobs
	RuleGrowth
	RuleQuota
	RuleLeavingRoom
	RuleConsolidation
)

// Why is a reason that becomes words only when somebody reads it.
type Why struct {
	Rule Rule
	// Reason is one word, as in a condition.
	Reason string
	// Text is a sentence.
	Text string
}
