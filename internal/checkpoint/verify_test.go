package checkpoint

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/concertina-dev/concertina/internal/ticket"
)

// alter changes one bit of a snapshot's file behind the store's back, as bad memory does.
func alter(t testing.TB, store *Store, id ID) {
	t.Helper()
	data, err := os.ReadFile(store.path(id))
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(store.path(id), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestVerify(t *testing.T) {
	store := open(t, 3)
	whole := put(t, store, ID{Round: 1, Step: 10}, content(7, 3<<20))
	altered := put(t, store, ID{Round: 1, Step: 20}, content(7, 2<<20))
	cut := put(t, store, ID{Round: 1, Step: 30}, content(7, 1<<20))
	alter(t, store, altered.ID)
	if err := os.Truncate(store.path(cut.ID), 100); err != nil {
		t.Fatal(err)
	}
	if err := store.Verify(whole.ID); err != nil {
		t.Errorf("a whole file: %v", err)
	}
	for _, id := range []ID{altered.ID, cut.ID} {
		if err := store.Verify(id); !errors.Is(err, errAltered) {
			t.Errorf("an altered file: %v", err)
		}
		if err := store.Verify(id); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it is verified again: %v", err)
		}
	}
	if diff := cmp.Diff([]Snapshot{whole}, store.List()); diff != "" {
		t.Errorf("held afterwards: %s", diff)
	}
	if diff := cmp.Diff([]string{whole.String()}, files(t, store)); diff != "" {
		t.Errorf("files afterwards: %s", diff)
	}
}

// A holder whose file was altered drops it when somebody gets wrong bytes from it, so that nobody is sent there again.
func TestAHolderWhoseFileWasAltered(t *testing.T) {
	bad, good, here := open(t, 2), open(t, 2), open(t, 2)
	data := content(7, 2<<20)
	older := put(t, bad, ID{Round: 1, Step: 10}, data)
	want := put(t, bad, ID{Round: 1, Step: 20}, data)
	put(t, good, want.ID, data)
	alter(t, bad, want.ID)
	identity := newIdentity()
	var told []error
	server, err := Serve(bad, "127.0.0.1:0", identity, func(err error) { told = append(told, err) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	server.SetKey(1, ticket.KeyOf(secret, identity.Sum()))
	holder := Holder{Address: "127.0.0.1", Port: server.Port(), Certificate: identity.Sum()}

	_, err = fetch(t.Context(), here, want, with(want, holder), fetcher)
	if err == nil || !strings.Contains(err.Error(), "and its file is not whole") || errors.Is(err, ErrUnreached) || errors.Is(err, ErrLocal) {
		t.Errorf("fetched from it alone: %v", err)
	}
	if diff := cmp.Diff([]Snapshot{older}, bad.List()); diff != "" {
		t.Errorf("it holds afterwards: %s", diff)
	}
	if len(told) != 1 {
		t.Errorf("its agent was told %v", told)
	}
	_, other := serve(t, good)
	if _, err := fetch(t.Context(), here, want, with(want, holder, other), fetcher); err != nil {
		t.Errorf("with another holder: %v", err)
	}
}

// Whoever gets wrong bytes from holders that are whole is at fault itself, or the way there is: they keep theirs.
func TestAHolderThatIsWholeKeepsItsFile(t *testing.T) {
	store := open(t, 2)
	held := put(t, store, ID{Round: 1, Step: 20}, content(7, 1000))
	_, holder := serve(t, store)
	want := held
	want.Hash[0] ^= 1
	_, err := fetch(t.Context(), open(t, 2), want, with(want, holder), fetcher)
	if err == nil || !strings.Contains(err.Error(), "though its file is whole") {
		t.Errorf("%v", err)
	}
	if diff := cmp.Diff([]Snapshot{held}, store.List()); diff != "" {
		t.Error(diff)
	}
}

// What a worker goes on from is read again before: its own file may have been altered since it was written.
func TestAnOwnFileThatWasAltered(t *testing.T) {
	here, there := open(t, 2), open(t, 2)
	data := content(7, 2<<20)
	want := put(t, here, ID{Round: 1, Step: 20}, data)
	put(t, there, want.ID, data)
	_, holder := serve(t, there)

	if _, err := fetch(t.Context(), here, want, nil, fetcher); err != nil {
		t.Errorf("it is held and whole, and nobody need be asked: %v", err)
	}
	alter(t, here, want.ID)
	if _, err := fetch(t.Context(), here, want, nil, fetcher); err == nil || !strings.Contains(err.Error(), "is not what it was") {
		t.Errorf("altered, and nobody else has it: %v", err)
	}
	put(t, here, want.ID, data)
	alter(t, here, want.ID)
	path, err := fetch(t.Context(), here, want, with(want, holder), fetcher)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
		t.Errorf("it has other bytes than the holder (%v)", err)
	}
}
