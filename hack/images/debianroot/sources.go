package debianroot

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// Mirror finds the Debian archive that this machine installs from: the first source in
// aptDir (usually /etc/apt) that serves component main of codename, the machine's own
// release. The archive serves every other release from the same address.
func Mirror(aptDir, codename string) (string, error) {
	files := []string{filepath.Join(aptDir, "sources.list")}
	for _, pattern := range []string{"*.list", "*.sources"} {
		found, err := filepath.Glob(filepath.Join(aptDir, "sources.list.d", pattern))
		if err != nil {
			return "", err
		}
		sort.Strings(found)
		files = append(files, found...)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		parse := parseOneLine
		if strings.HasSuffix(file, ".sources") {
			parse = parseDeb822
		}
		for _, s := range parse(string(text)) {
			if slices.Contains(s.suites, codename) && slices.Contains(s.components, "main") {
				return s.uri, nil
			}
		}
	}
	return "", errors.New("no Debian archive in " + aptDir +
		" serves component main of this machine's release: set CONCERTINA_DEBIAN_MIRROR to the address of one")
}

type source struct {
	uri        string
	suites     []string
	components []string
}

// parseOneLine reads the older format: deb [options] uri suite component…
func parseOneLine(text string) []source {
	var sources []source
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if open, after, ok := strings.Cut(line, "["); ok {
			_, rest, _ := strings.Cut(after, "]")
			line = open + rest
		}
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[0] != "deb" {
			continue
		}
		sources = append(sources, source{uri: fields[1], suites: fields[2:3], components: fields[3:]})
	}
	return sources
}

// parseDeb822 reads the newer format: stanzas of "Field: values", a blank line between two.
func parseDeb822(text string) []source {
	var sources []source
	for stanza := range strings.SplitSeq(text, "\n\n") {
		fields := stanzaFields(stanza)
		if !slices.Contains(fields["types"], "deb") || slices.Contains(fields["enabled"], "no") {
			continue
		}
		for _, uri := range fields["uris"] {
			sources = append(sources, source{uri: uri, suites: fields["suites"], components: fields["components"]})
		}
	}
	return sources
}

func stanzaFields(stanza string) map[string][]string {
	fields := map[string][]string{}
	last := ""
	for line := range strings.SplitSeq(stanza, "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		if strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t") {
			fields[last] = append(fields[last], strings.Fields(line)...)
			continue
		}
		key, values, ok := strings.Cut(line, ":")
		if ok {
			last = strings.ToLower(key)
			fields[last] = strings.Fields(values)
		}
	}
	return fields
}

// Codename reads VERSION_CODENAME from an os-release file; empty when there is none.
func Codename(osRelease string) (string, error) {
	text, err := os.ReadFile(osRelease)
	if err != nil {
		return "", err
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if value, ok := strings.CutPrefix(line, "VERSION_CODENAME="); ok {
			return strings.Trim(value, `"'`), nil
		}
	}
	return "", nil
}
