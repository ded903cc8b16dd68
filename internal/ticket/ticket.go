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
	"hash"
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
	mac := hmac.New(sha256.New, secret)
	for _, part := range [][]byte{[]byte("concertina holder\x00"), holder[:]} {
		_, _ = mac.Write(part) // never fails
	}
	return mac.Sum(nil)
}

// Issue makes a ticket for the holder of a key. Whole seconds of expires count.
func Issue(key []byte, term uint64, grant Grant, expires time.Time) Ticket {
	return NewIssuer(key).Issue(term, grant, expires)
}

// Issuer makes tickets for one holder. Many of them are cheaper to make with the same one. It is for one goroutine at a time.
type Issuer struct {
	key []byte
	mac hash.Hash // nil before the first
}

// NewIssuer makes one for the holder of a key.
func NewIssuer(key []byte) *Issuer { return &Issuer{key: key} }

// Key is the holder's.
func (i *Issuer) Key() []byte { return i.key }

// Issue makes a ticket. Whole seconds of expires count.
func (i *Issuer) Issue(term uint64, grant Grant, expires time.Time) Ticket {
	made := make([]byte, 0, Bytes)
	made = binary.BigEndian.AppendUint64(made, term)
	made = binary.BigEndian.AppendUint64(made, uint64(max(0, expires.Unix())))
	if i.mac == nil {
		i.mac = hmac.New(sha256.New, i.key)
	}
	i.mac.Reset()
	return grant.code(i.mac, made, made)
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
	if !hmac.Equal(t[16:], grant.code(hmac.New(sha256.New, key), t[:16], nil)) {
		return ErrForeign
	}
	if expires := binary.BigEndian.Uint64(t[8:]); now.Unix() < 0 || uint64(now.Unix()) >= expires {
		return ErrExpired
	}
	return nil
}

// ticketed begins what a ticket proves.
var ticketed = []byte("concertina ticket\x00")

// code appends the HMAC of a grant, and of what a ticket begins with, to some bytes.
func (g Grant) code(mac hash.Hash, head, to []byte) []byte {
	var what [len(g.Fetcher) + 16]byte
	copy(what[:], g.Fetcher[:])
	binary.BigEndian.PutUint64(what[len(g.Fetcher):], g.Round)
	binary.BigEndian.PutUint64(what[len(g.Fetcher)+8:], g.Step)
	for _, part := range [][]byte{ticketed, head, what[:]} {
		_, _ = mac.Write(part) // never fails
	}
	return mac.Sum(to)
}
