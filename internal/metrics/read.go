package metrics

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxLine is the maximum length of a line that Read accepts, in bytes.
const maxLine = 1 << 20

// Read calls f for each sample of a text in the format of a Writer. It ignores comments and timestamps. The map labels
// is valid until f returns.
func Read(in io.Reader, f func(name string, labels map[string]string, value float64)) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	labels := map[string]string{}
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		clear(labels)
		name, value, err := readSample(line, labels)
		if err != nil {
			return fmt.Errorf("read metrics: line %d: %w", n, err)
		}
		f(name, labels, value)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read metrics: %w", err)
	}
	return nil
}

// readSample parses a sample, and adds its labels to the map.
func readSample(line string, labels map[string]string) (name string, value float64, err error) {
	end := strings.IndexAny(line, "{ \t")
	if end <= 0 {
		return "", 0, errors.New("sample has no value")
	}
	name, line = line[:end], line[end:]
	if line[0] == '{' {
		if line, err = readLabels(line[1:], labels); err != nil {
			return "", 0, err
		}
	}
	fields := strings.Fields(line)
	if len(fields) != 1 && len(fields) != 2 { // the second one is a timestamp
		return "", 0, errors.New("sample has no value")
	}
	if value, err = strconv.ParseFloat(fields[0], 64); err != nil {
		return "", 0, fmt.Errorf("value %.40q is not a number", fields[0])
	}
	return name, value, nil
}

// readLabels parses labels up to the closing brace, and returns the rest of the line.
func readLabels(text string, labels map[string]string) (rest string, err error) {
	for {
		text = strings.TrimLeft(text, ", \t")
		if rest, ok := strings.CutPrefix(text, "}"); ok {
			return rest, nil
		}
		name, behind, ok := strings.Cut(text, `="`)
		if !ok {
			return "", fmt.Errorf("invalid labels at %.40q", text)
		}
		var value strings.Builder
		i := 0
		for ; i < len(behind) && behind[i] != '"'; i++ {
			c := behind[i]
			if c == '\\' && i+1 < len(behind) {
				i++
				if c = behind[i]; c == 'n' {
					c = '\n'
				}
			}
			value.WriteByte(c)
		}
		if i == len(behind) {
			return "", errors.New("value of a label has no closing quote")
		}
		labels[strings.TrimSpace(name)] = value.String()
		text = behind[i+1:]
	}
}
