// Package digits is 1797 real handwritten digits, as images of 8 by 8 pixels.
//
// They are the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak,
// UCI Machine Learning Repository, 1998, https://doi.org/10.24432/C50P49, CC BY 4.0), in the file
// digits.csv.gz as scikit-learn bundles it: one image per line, 64 pixels of 0 to 16 and the digit.
package digits

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/csv"
	"fmt"
	"strconv"
)

// Pixels is the number of pixels of an image, Classes that of different digits.
const (
	Pixels  = 64
	Classes = 10
)

// brightest is the largest value of a pixel in the file.
const brightest = 16

// testEvery says which images are kept for the test: every fifth.
const testEvery = 5

//go:embed digits.csv.gz
var file []byte

// Image is one handwritten digit.
type Image struct {
	// Pixels are 0 (white) to 1 (black), row by row.
	Pixels [Pixels]float64
	// Digit is what was written, 0 to 9.
	Digit int
}

// Load returns the images to train with and those to test with.
func Load() (train, test []Image, err error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		return nil, nil, fmt.Errorf("read the digits: %w", err)
	}
	lines := csv.NewReader(unzipped)
	lines.FieldsPerRecord = Pixels + 1
	records, err := lines.ReadAll()
	if err != nil {
		return nil, nil, fmt.Errorf("read the digits: %w", err)
	}
	for i, record := range records {
		image, err := parse(record)
		if err != nil {
			return nil, nil, fmt.Errorf("read the digits: line %d: %w", i+1, err)
		}
		if i%testEvery == testEvery-1 {
			test = append(test, image)
		} else {
			train = append(train, image)
		}
	}
	return train, test, nil
}

func parse(record []string) (Image, error) {
	var image Image
	for i, text := range record {
		most := brightest
		if i == Pixels {
			most = Classes - 1
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > most {
			return image, fmt.Errorf("field %d is %q: a number from 0 to %d is wanted", i+1, text, most)
		}
		if i == Pixels {
			image.Digit = n
		} else {
			image.Pixels[i] = float64(n) / brightest
		}
	}
	return image, nil
}
