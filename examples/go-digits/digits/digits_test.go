package digits

import "testing"

func TestLoad(t *testing.T) {
	train, test, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	if len(train) != 1438 || len(test) != 359 {
		t.Fatalf("%d images to train with and %d to test with, want 1438 and 359", len(train), len(test))
	}
	counts := [Classes]int{}
	for _, image := range append(train, test...) {
		counts[image.Digit]++
		for i, x := range image.Pixels {
			if x < 0 || x > 1 {
				t.Fatalf("pixel %d is %v", i, x)
			}
		}
	}
	for digit, n := range counts {
		if n < 150 {
			t.Errorf("digit %d is there %d times", digit, n)
		}
	}
	// The first line of the file.
	if train[0].Digit != 0 || train[0].Pixels[2] != 5.0/16 {
		t.Errorf("the first image is %+v", train[0])
	}
}

func TestParseRefusesWhatIsNoDigit(t *testing.T) {
	good := make([]string, Pixels+1)
	for i := range good {
		good[i] = "0"
	}
	if _, err := parse(good); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		field int
		text  string
	}{"too dark": {3, "17"}, "negative": {3, "-1"}, "no number": {3, ""}, "no digit": {Pixels, "10"}} {
		bad := append([]string(nil), good...)
		bad[row.field] = row.text
		if _, err := parse(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
