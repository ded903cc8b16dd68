package durable

import (
	"strings"
	"testing"
	"time"

	"github.com/concertina-dev/concertina/internal/uploader"
)

// A storage takes a request, and neither answers nor says that anything is wrong: that is told, and in the end it is asked anew.
func TestAStorageThatNeverAnswers(t *testing.T) {
	w := newWorker(t)
	w.pauses.Quiet = 20 * time.Millisecond
	s := w.slowly(t)
	w.Ask(nil, &Restore{Number: 7})
	<-s.asked
	eventually(t, "it is told", func() bool { return strings.Contains(w.State().Waiting, "nothing has come from the storage") })
	<-s.broken
	<-s.asked
	s.answers <- uploader.Answer{}
	eventually(t, "it has come to an end", func() bool { return w.State().Restored.Number == 7 && !w.State().Bringing })
	if got := w.State(); got.Waiting != "" || got.Restored.Why != "" {
		t.Errorf("it says %+v", got)
	}
}

// What comes slowly comes: every piece that is written shows it, and nothing is told.
func TestWhatComesSlowlyIsNotSilent(t *testing.T) {
	w := newWorker(t)
	w.pauses.Quiet = time.Hour
	l := w.listen(t.Context(), time.Hour)
	defer l.stop()
	file, err := w.holder.Make()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	before := l.sign()
	l.from(file)
	for i := range 3 {
		if now := l.sign(); now == before {
			t.Fatalf("nothing shows before piece %d", i)
		} else {
			before = now
		}
		if _, err := file.WriteAt([]byte("piece"), int64(i)*8); err != nil {
			t.Fatal(err)
		}
	}
	said := ""
	l.tell(&said, "nothing has come")
	if got := w.State().Waiting; got != "nothing has come" {
		t.Errorf("it says %q", got)
	}
	l.tell(&said, "")
	if got := w.State().Waiting; got != "" {
		t.Errorf("it says %q", got)
	}
}

// A later operator names the world that is broken, before it finds that out: what is brought for the next one goes on.
func TestAWorldBeginsOnce(t *testing.T) {
	w := newWorker(t)
	s := w.slowly(t)
	w.Begun(3)
	w.Ask(nil, &Restore{Number: 7})
	<-s.asked
	w.Begun(3)
	w.Ask(nil, nil)
	w.Ask(nil, &Restore{Number: 8}) // of the later operator
	s.answers <- uploader.Answer{}
	eventually(t, "it is restored", func() bool { return w.State().Restored.Number == 8 })
	if len(s.broken)+len(s.asked) > 0 {
		t.Errorf("it was broken off %d times, and asked for %d times more", len(s.broken), len(s.asked))
	}
	w.Ask(nil, &Restore{Number: 9})
	<-s.asked
	w.Begun(4)
	<-s.broken
}

// While a worker brings something back, that an upload of its has failed before is another matter.
func TestAnOldFailureWhileSomethingIsBrought(t *testing.T) {
	w := newWorker(t)
	s := w.slowly(t)
	w.Ask(whole(w.take(t, 5, "state")), nil)
	<-s.asked
	s.answers <- uploader.Answer{Error: "503 Slow Down", Passing: true}
	eventually(t, "it failed", func() bool { return w.State().Failure != "" })
	w.Ask(nil, &Restore{Number: 7}) // another one uploads it
	for request := range s.asked {
		if request.Ask == uploader.AskRestore {
			break
		}
		s.answers <- uploader.Answer{Error: "503 Slow Down", Passing: true}
	}
	if got := w.State(); !got.Bringing || got.Waiting != "" {
		t.Errorf("it says %+v", got)
	}
	s.answers <- uploader.Answer{}
	eventually(t, "it is restored", func() bool { return w.State().Restored.Number == 7 && !w.State().Bringing })
}
