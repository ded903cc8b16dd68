package server

import (
	"crypto/ecdsa"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc/codes"

	"github.com/concertina-dev/concertina/internal/rendezvous"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvoustest"
	"github.com/concertina-dev/concertina/internal/rendezvous/rendezvousv1"
)

// shapes are the ways in which bytes may show in a text. A log quotes what is quoted already once more.
func shapes(secret []byte) []string {
	inner := func(quoted string) string {
		return quoted[strings.Index(quoted, `"`)+1 : strings.LastIndex(quoted, `"`)]
	}
	numbers, quoted := fmt.Sprintf("%d", secret), inner(strconv.Quote(string(secret)))
	message := inner((&rendezvousv1.Holder{Ticket: secret}).String())
	return []string{
		string(secret), quoted, inner(strconv.Quote(quoted)), message, inner(strconv.Quote(message)),
		numbers, strings.ReplaceAll(numbers, " ", ","), hex.EncodeToString(secret), strings.ToUpper(hex.EncodeToString(secret)),
		base64.RawStdEncoding.EncodeToString(secret), base64.RawURLEncoding.EncodeToString(secret),
	}
}

// A worker joins, a world grows and the newcomer is given tickets, strangers are refused, and another operator takes the
// job over: whatever is logged says no token, no secret of a term, no key, and no ticket.
func TestNoSecretIsLogged(t *testing.T) {
	log := &lines{}
	everything := func(o *Options) { o.Logger = funcr.New(log.add, funcr.Options{Verbosity: 127, LogCaller: funcr.All}) }
	f := serve(t, everything)
	secrets := map[string][]byte{}
	key, err := f.options.TLS.Certificates[0].PrivateKey.(*ecdsa.PrivateKey).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	secrets["the operator's private key"] = key
	start := func(name string) *rendezvoustest.Agent {
		return f.elastic(t, name, func(c *rendezvoustest.Config) {
			token := rand.Text()
			f.tokens.issue(token, rendezvous.Identity{Namespace: "team", PodName: name, PodUID: "uid-" + name, Expires: time.Now().Add(time.Hour)})
			secrets["the token of "+name] = []byte(token)
			c.Hello.SnapshotCertificate[0], c.LastStep = name[0], 1<<40
			c.Token = func() string { return token }
		})
	}
	gang := gangOf(1, "a", "b")
	gang.Minimum, gang.Target = 1, 3
	f.Expect(digits, gang)
	agents := map[string]*rendezvoustest.Agent{"a": start("a"), "b": start("b")}
	f.eventually(t, "the world trains", func(o rendezvous.Observation) bool { return o.Progress.Step > 3 && o.Elastic })
	gang = gangOf(1, "a", "b", "c")
	gang.Minimum, gang.Target = 1, 3
	f.Expect(digits, gang)
	agents["c"] = start("c")
	f.eventually(t, "the world has grown", func(o rendezvous.Observation) bool { return o.Round == 2 && o.Phase == rendezvous.PhaseTraining })

	// told notes what a leader and its agents know of each other.
	told := func(leader *fixture, term uint64) {
		j := leader.jobs.jobs[digits]
		j.mu.Lock()
		secrets[fmt.Sprint("the secret of term ", term)] = reflect.ValueOf(j.machine).Elem().FieldByName("secret").Bytes()
		j.mu.Unlock()
		for name, agent := range agents {
			s := await(t, agent, func(s rendezvoustest.Snapshot) bool { return s.Term == term && s.Round == 2 })
			secrets[fmt.Sprintf("the key of %s in term %d", name, term)] = s.Secret
			for i, h := range s.Worlds[2].GetHolders() {
				secrets[fmt.Sprintf("ticket %d of %s in term %d", i, name, term)] = h.GetTicket()
			}
		}
	}
	told(f, 1)
	stranger := rand.Text()
	secrets["the token of a stranger"] = []byte(stranger)
	wantCode(t, f.converse(t, stranger, first(f.pod("d"))), codes.Unauthenticated, "unknown token")
	wantCode(t, f.converse(t, string(secrets["the token of a"]), first(f.pod("b"))), codes.PermissionDenied, "the token belongs to pod")

	next := serve(t, func(o *Options) {
		everything(o)
		o.TLS, o.Recorder, o.Authenticator = f.options.TLS, f.recorder, f.tokens
	})
	f.stop()
	f.recorder.mu.Lock()
	gang.Durable = f.recorder.records[digits]
	f.recorder.mu.Unlock()
	next.Expect(digits, gang)
	for _, agent := range agents {
		agent.Redirect(next.address)
	}
	next.eventually(t, "the world is adopted", func(o rendezvous.Observation) bool { return o.Round == 2 && !o.Adopting && o.Progress.Step > 3 })
	told(next, 2)
	next.stop()

	if len(log.with("a session has ended")) == 0 || len(log.with("is adopted")) == 0 {
		t.Error("the log is not what was said of it")
	}
	tickets := 0
	for what, secret := range secrets {
		if strings.HasPrefix(what, "ticket") {
			tickets++
		}
		if len(secret) < 16 {
			t.Errorf("%s has %d bytes: they could be in a log by chance", what, len(secret))
			continue
		}
		for _, shape := range shapes(secret) {
			for _, line := range log.with(shape) {
				t.Errorf("%s is in the log: %s", what, line)
			}
		}
	}
	if tickets == 0 {
		t.Error("no tickets were given")
	}
}
