package allocation

// pool is what jobs of one namespace share by value, in devices beyond what all of them keep.
type pool struct {
	all int64
	// untaken is how many of them those may have who take nothing from jobs of lower priority, all of these together.
	untaken int64
}

// open is how many of them a job may have that takes nothing, or that does.
func (l *pool) open(patient bool) int64 {
	if patient {
		return min(l.all, l.untaken)
	}
	return l.all
}

// take has a job take so many.
func (l *pool) take(b *bid, devices int64) {
	l.all -= devices
	if b.patient {
		l.untaken -= devices
	}
}
