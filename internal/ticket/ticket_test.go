package ticket

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

var (
	secret  = []byte("the secret of a term")
	now     = time.Unix(1e9, 0)
	grant   = Grant{Fetcher: [32]byte{1}, Round: 3, Step: 17}
	expires = now.Add(time.Hour)
)

func TestTicketsOpenOneThingForOne(t *testing.T) {
	key := KeyOf(secret, [32]byte{9})
	good := Issue(key, 4, grant, expires)
	altered := func(at int) Ticket {
		other := append(Ticket(nil), good...)
		other[at] ^= 1
		return other
	}
	cases := map[string]struct {
		key    []byte
		ticket Ticket
		grant  Grant
		now    time.Time
		want   error
	}{
		"the one that it was made for": {key, good, grant, now, nil},
		"its last second":              {key, good, grant, expires.Add(-time.Second), nil},
		"expired":                      {key, good, grant, expires, ErrExpired},
		"another holder":               {KeyOf(secret, [32]byte{8}), good, grant, now, ErrForeign},
		"another term's secret":        {KeyOf([]byte("another"), [32]byte{9}), good, grant, now, ErrForeign},
		"another fetcher":              {key, good, Grant{[32]byte{2}, 3, 17}, now, ErrForeign},
		"another round":                {key, good, Grant{[32]byte{1}, 4, 17}, now, ErrForeign},
		"another step":                 {key, good, Grant{[32]byte{1}, 3, 18}, now, ErrForeign},
		"another term":                 {key, altered(7), grant, now, ErrForeign},
		"a longer life":                {key, altered(11), grant, expires, ErrForeign},
		"an altered proof":             {key, altered(Bytes - 1), grant, now, ErrForeign},
		"none":                         {key, nil, grant, now, ErrMalformed},
		"a part of one":                {key, good[:Bytes-1], grant, now, ErrMalformed},
		"more than one":                {key, append(append(Ticket(nil), good...), 0), grant, now, ErrMalformed},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if err := c.ticket.Check(c.key, c.grant, c.now); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
	if term, ok := good.Term(); term != 4 || !ok {
		t.Errorf("made in term %d, %v", term, ok)
	}
}

func TestTicketsAreNotPrinted(t *testing.T) {
	made := Issue(KeyOf(secret, [32]byte{9}), 4, grant, expires)
	inside := struct{ Ticket Ticket }{made}
	for _, text := range []string{fmt.Sprint(made), fmt.Sprintf("%v %+v %#v %s", inside, inside, inside, made)} {
		if strings.Contains(text, fmt.Sprintf("%d", []byte(made)[Bytes-3:])[1:]) || !strings.Contains(text, "(a ticket)") {
			t.Errorf("printed as %s", text)
		}
	}
}
