package chroot

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// mountPointsBelow lists the mount points at or below dir in the order they were mounted.
func mountPointsBelow(mountinfo, dir string) ([]string, error) {
	file, err := os.Open(mountinfo)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var points []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		point := unescape(fields[4])
		if point == dir || strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	return points, lines.Err()
}

// unescape undoes the octal escapes (\040 for a blank) of mountinfo.
func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if value, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(value))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}
