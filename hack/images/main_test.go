package main

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestUnknownNamesAreRefusedBeforeAnythingIsBuilt(t *testing.T) {
	t.Setenv("CONCERTINA_CACHE", t.TempDir())
	for _, args := range [][]string{{"build", "agent", "no-such"}, {"no-such"}, {}} {
		var out bytes.Buffer
		err := command(context.Background(), args, &out)
		if err == nil || !strings.Contains(err.Error(), "images") || out.Len() != 0 {
			t.Errorf("%q: %v, printed %q", args, err, out.String())
		}
	}
}

func TestListNamesEveryImage(t *testing.T) {
	var out bytes.Buffer
	if err := command(context.Background(), []string{"list"}, &out); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"operator", "agent", "go-digits", "pytorch-digits", "frameworks"} {
		if !strings.Contains(out.String(), name+" ") {
			t.Errorf("%s is not in the list:\n%s", name, out.String())
		}
	}
}

// What is large and slow to make is made for who asks for it, and whoever loads all images does not load it.
func TestTheFrameworksAreBuiltWhenTheyAreNamed(t *testing.T) {
	for _, i := range catalog {
		chosen, err := choose(nil)
		if err != nil {
			t.Fatal(err)
		}
		among := func(one image) bool { return one.name == i.name }
		if i.apart == slices.ContainsFunc(chosen, among) {
			t.Errorf("%s is among all images: %v", i.name, !i.apart)
		}
		if chosen, err = choose([]string{i.name}); err != nil || len(chosen) != 1 || !among(chosen[0]) {
			t.Errorf("asked for %s: %d images, %v", i.name, len(chosen), err)
		}
	}
	all, err := filepath.Match("/cache/images/*.tar", builder{cache: "/cache"}.imageFile(image{name: "frameworks", apart: true}))
	if all || err != nil {
		t.Errorf("it is loaded with all others: %v", err)
	}
}

func TestRunRefusesABadUser(t *testing.T) {
	b := builder{cache: t.TempDir(), out: &bytes.Buffer{}}
	for _, user := range []string{"root", "1", "-1:5"} {
		if err := b.run(context.Background(), []string{"-user", user, "--", "true"}); err == nil || !strings.Contains(err.Error(), "UID:GID") {
			t.Errorf("user %q: %v", user, err)
		}
	}
}

func TestPythonFilesMustExist(t *testing.T) {
	if _, err := pythonFiles(filepath.Join(t.TempDir(), "none"), "/app"); err == nil {
		t.Error("an example without a program would make an empty image")
	}
}
