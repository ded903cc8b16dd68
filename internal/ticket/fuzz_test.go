package ticket

import (
	"bytes"
	"testing"
	"time"
)

// FuzzTicket shows a holder whatever somebody may show it. Only what the operator has issued opens anything, for as long as
// it was to.
func FuzzTicket(f *testing.F) {
	key := KeyOf(secret, [32]byte{9})
	good := Issue(key, 4, grant, expires)
	f.Add([]byte(good), now.Unix())
	f.Add([]byte(good), expires.Unix())
	f.Add([]byte(Issue(KeyOf(secret, [32]byte{8}), 4, grant, expires)), now.Unix())
	f.Add([]byte(Issue(key, 4, Grant{Fetcher: grant.Fetcher, Round: 3, Step: 18}, expires)), now.Unix())
	f.Add([]byte(good[:Bytes-1]), now.Unix())
	f.Add([]byte{}, int64(-1))
	f.Fuzz(func(t *testing.T, shown []byte, at int64) {
		some := Ticket(shown)
		err := some.Check(key, grant, time.Unix(at, 0))
		if opens := bytes.Equal(shown, good) && at >= 0 && at < expires.Unix(); (err == nil) != opens {
			t.Errorf("%x at %d is answered with %v", shown, at, err)
		}
		if _, ok := some.Term(); ok != (len(shown) == Bytes) {
			t.Errorf("a term is read of %d bytes: %v", len(shown), ok)
		}
	})
}
