package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-logr/logr"
)

const (
	// refreshEvery is how old published keys may be before they are asked for again, keepKeys how old while
	// they cannot be had: a key that the cluster has taken back is believed no longer than that.
	refreshEvery = 5 * time.Minute
	keepKeys     = time.Hour
	// askEvery is the shortest time between two requests, whatever key ids tokens name.
	askEvery   = 10 * time.Second
	askTimeout = 5 * time.Second
)

// errNoKey says that the published keys do not tell whether a token is valid.
var errNoKey = errors.New("the cluster has published no key of that id")

// published is what a cluster says of its service account tokens.
type published struct {
	issuer string
	keys   map[string]jose.JSONWebKey
	at     time.Time
}

// keys are the public keys with which the API server's tokens are checked.
type keys struct {
	// fetch reads the discovery document and the key set from the API server.
	fetch func(ctx context.Context) (discovery, set []byte, err error)
	now   func() time.Time
	// logger is told when they cannot be had.
	logger logr.Logger

	mu      sync.Mutex
	current *published
	// asked is when the keys were asked for last; asking is closed when the answer is there, and nil when
	// none is under way.
	asked  time.Time
	asking chan struct{}
}

// find returns the key of that id and the issuer that the cluster names. Errors: errNoKey, or the context's.
func (k *keys) find(ctx context.Context, id string) (jose.JSONWebKey, string, error) {
	for {
		k.mu.Lock()
		now := k.now()
		var key jose.JSONWebKey
		known := false
		if k.current != nil && now.Sub(k.current.at) < keepKeys {
			key, known = k.current.keys[id]
		}
		fresh := known && now.Sub(k.current.at) < refreshEvery
		switch {
		case fresh || known && k.asking != nil:
			defer k.mu.Unlock()
			return key, k.current.issuer, nil
		case k.asking != nil:
			answered := k.asking
			k.mu.Unlock()
			select {
			case <-answered:
				continue
			case <-ctx.Done():
				return jose.JSONWebKey{}, "", ctx.Err()
			}
		case !k.asked.IsZero() && now.Sub(k.asked) < askEvery:
			defer k.mu.Unlock()
			if known {
				return key, k.current.issuer, nil
			}
			return jose.JSONWebKey{}, "", errNoKey
		}
		k.asked, k.asking = now, make(chan struct{})
		k.mu.Unlock()
		k.ask()
	}
}

// ask reads the keys. Trouble leaves those that are known. Others wait for the answer, so the context of
// who asks does not matter.
func (k *keys) ask() {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	var fresh *published
	discovery, set, err := k.fetch(ctx)
	if err == nil {
		fresh, err = readPublished(discovery, set)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		fresh.at = k.now()
		k.current = fresh
	} else {
		k.logger.Error(err, "the keys of service account tokens cannot be had: the API server reviews tokens meanwhile")
	}
	close(k.asking)
	k.asking = nil
}

// readPublished takes the keys out of what the API server says. Keys that no token may be signed with are
// left out.
func readPublished(discovery, set []byte) (*published, error) {
	var document struct {
		Issuer string `json:"issuer"`
	}
	if err := json.Unmarshal(discovery, &document); err != nil {
		return nil, fmt.Errorf("read the discovery document of the API server: %w", err)
	}
	if document.Issuer == "" {
		return nil, errors.New("the discovery document of the API server names no issuer")
	}
	var read jose.JSONWebKeySet
	if err := json.Unmarshal(set, &read); err != nil {
		return nil, fmt.Errorf("read the key set of the API server: %w", err)
	}
	p := &published{issuer: document.Issuer, keys: map[string]jose.JSONWebKey{}}
	for _, key := range read.Keys {
		if key.KeyID != "" && key.IsPublic() && (key.Use == "" || key.Use == "sig") {
			p.keys[key.KeyID] = key
		}
	}
	return p, nil
}
