// Package ticket is what a worker shows to get a snapshot from another: the operator's word that this worker may
// have this snapshot from that one, for some time. The operator makes a ticket out of a key that it gives to the
// holder alone, so the holder needs to ask nobody, and can open nothing but itself.
//
// The package is pure: it knows neither clock nor network.
package ticket

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"time"
)

// Bytes is the size of a ticket: its term, when it expires, and the code that proves both.
const Bytes = 8 + 8 + sha256.Size

// Life is how long a ticket is valid at most. It outlasts every transfer, with all of its holders, and whatever
// the clocks of two nodes differ by. That is long for a secret, but a ticket is worth nothing without the private
// key of the worker that it was made for.
const Life = 6 * time.Hour

// Ticket is a secret between the operator, the fetcher that it was made for and the holder. It never shows in
// what is printed.
type Ticket []byte

// String hides the ticket.
func (Ticket) String() string { return "(a ticket)" }

// GoString hides the ticket.
func (Ticket) GoString() string { return "(a ticket)" }

// Grant is what a ticket allows: the worker that shows the certificate with this SHA-256 may have the snapshot.
type Grant struct {
	Fetcher     [32]byte
	Round, Step uint64
}

// KeyOf is the key of one holder, known by the SHA-256 of its certificate, under the secret of a term.
func KeyOf(secret []byte, holder [32]byte) []byte {
	return code(secret, []byte("concertina holder\x00"), holder[:])
}

// Issue makes a ticket for the holder of a key. Whole seconds of expires count.
func Issue(key []byte, term uint64, grant Grant, expires time.Time) Ticket {
	made := binary.BigEndian.AppendUint64(nil, term)
	made = binary.BigEndian.AppendUint64(made, uint64(max(0, expires.Unix())))
	return append(made, grant.code(key, made)...)
}

// The reasons for which a ticket is refused.
var (
	ErrMalformed = errors.New("no ticket of the operator")
	ErrForeign   = errors.New("a ticket for something else, or an altered one")
	ErrExpired   = errors.New("an expired ticket")
)

// Term is the term in which a ticket was made; false when it is none. Nothing is proven by it.
func (t Ticket) Term() (uint64, bool) {
	if len(t) != Bytes {
		return 0, false
	}
	return binary.BigEndian.Uint64(t), true
}

// Check says why a ticket does not allow something now; nil when it does.
func (t Ticket) Check(key []byte, grant Grant, now time.Time) error {
	if len(t) != Bytes {
		return ErrMalformed
	}
	if !hmac.Equal(t[16:], grant.code(key, t[:16])) {
		return ErrForeign
	}
	if expires := binary.BigEndian.Uint64(t[8:]); now.Unix() < 0 || uint64(now.Unix()) >= expires {
		return ErrExpired
	}
	return nil
}

func (g Grant) code(key, head []byte) []byte {
	what := binary.BigEndian.AppendUint64(append([]byte(nil), g.Fetcher[:]...), g.Round)
	what = binary.BigEndian.AppendUint64(what, g.Step)
	return code(key, []byte("concertina ticket\x00"), head, what)
}

// code is the HMAC-SHA-256 of parts whose lengths are fixed.
func code(key []byte, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	for _, part := range parts {
		_, _ = h.Write(part) // never fails
	}
	return h.Sum(nil)
}
