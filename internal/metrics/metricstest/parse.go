// Package metricstest parses the text format of metrics for tests. It is stricter than Prometheus itself.
package metricstest

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Sample is a value with its labels. The sample of a bucket also has the label le, the upper bound of the bucket.
type Sample struct {
	Suffix string // the part after the name of the family: "", "_bucket", "_sum" or "_count"
	Labels map[string]string
	Value  float64
}

// Family is a group of samples with the same name.
type Family struct {
	Kind, Help string
	Samples    []Sample
}

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	labelName  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
)

// Parse parses a whole text and returns the families by name. It returns an error for a family that occurs twice or
// lacks HELP or TYPE, an invalid name or escape sequence, a sample that occurs twice, a counter that is negative or
// whose name does not end in _total, and a histogram whose buckets decrease or whose last bucket differs from its
// count.
func Parse(text string) (map[string]*Family, error) {
	if !strings.HasSuffix(text, "\n") {
		return nil, fmt.Errorf("text does not end with a newline")
	}
	all := map[string]*Family{}
	name, seen := "", map[string]bool{}
	for n, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		err := func() error {
			switch {
			case strings.HasPrefix(line, "# HELP "):
				var help string
				name, help, _ = strings.Cut(strings.TrimPrefix(line, "# HELP "), " ")
				if all[name] != nil || !metricName.MatchString(name) || help == "" {
					return fmt.Errorf("family %q occurs twice, has an invalid name or has no help", name)
				}
				all[name] = &Family{Help: help}
				return nil
			case strings.HasPrefix(line, "# TYPE "):
				of, kind, _ := strings.Cut(strings.TrimPrefix(line, "# TYPE "), " ")
				f := all[of]
				if of != name || f == nil || f.Kind != "" || len(f.Samples) > 0 ||
					!slices.Contains([]string{"counter", "gauge", "histogram"}, kind) {
					return fmt.Errorf("line TYPE does not follow line HELP of its family, or has an unknown kind")
				}
				if f.Kind = kind; kind == "counter" != strings.HasSuffix(name, "_total") {
					return fmt.Errorf("%s has invalid name %s: names of counters, and only these, end in _total", kind, name)
				}
				return nil
			}
			f := all[name]
			if f == nil || f.Kind == "" {
				return fmt.Errorf("sample does not belong to a family")
			}
			s, err := parseSample(name, f.Kind, line)
			if err != nil {
				return err
			}
			key := line[:strings.LastIndexByte(line, ' ')]
			if seen[key] {
				return fmt.Errorf("sample %s occurs twice", key)
			}
			seen[key] = true
			if f.Kind != "gauge" && (s.Value < 0 || math.IsNaN(s.Value)) {
				return fmt.Errorf("%s has invalid value %v", f.Kind, s.Value)
			}
			f.Samples = append(f.Samples, s)
			return nil
		}()
		if err != nil {
			return nil, fmt.Errorf("line %d: %w: %s", n+1, err, line)
		}
	}
	for name, f := range all {
		if f.Kind == "" {
			return nil, fmt.Errorf("%s has no line TYPE", name)
		}
		if f.Kind == "histogram" {
			if err := checkHistogram(f); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return all, nil
}

// parseSample parses one line, which must be a sample of the given family.
func parseSample(family, kind, line string) (Sample, error) {
	s := Sample{Labels: map[string]string{}}
	end := strings.IndexAny(line, "{ ")
	if end < 0 || !strings.HasPrefix(line[:end], family) {
		return s, fmt.Errorf("sample does not belong to family %s", family)
	}
	s.Suffix = line[len(family):end]
	if kind == "histogram" != slices.Contains([]string{"_bucket", "_sum", "_count"}, s.Suffix) ||
		kind != "histogram" && s.Suffix != "" {
		return s, fmt.Errorf("sample of a %s has invalid suffix %q", kind, s.Suffix)
	}
	rest := line[end:]
	if rest[0] == '{' {
		var err error
		if rest, err = parseLabels(rest[1:], s.Labels); err != nil {
			return s, err
		}
	}
	value, ok := strings.CutPrefix(rest, " ")
	v, err := strconv.ParseFloat(value, 64)
	if !ok || err != nil {
		return s, fmt.Errorf("value is %q, want a number", rest)
	}
	s.Value = v
	return s, nil
}

// parseLabels parses labels up to the closing brace and adds them to labels. rest is the text after the brace.
func parseLabels(text string, labels map[string]string) (rest string, err error) {
	for {
		name, behind, ok := strings.Cut(text, `="`)
		if _, twice := labels[name]; !ok || twice || !labelName.MatchString(name) {
			return "", fmt.Errorf("invalid or repeated label at %.20q", text)
		}
		var value strings.Builder
		i := 0
		for ; i < len(behind) && behind[i] != '"'; i++ {
			c := behind[i]
			if c == '\\' {
				i++
				if i == len(behind) || !strings.ContainsRune(`\"n`, rune(behind[i])) {
					return "", fmt.Errorf("invalid escape sequence at %.20q", behind[i-1:])
				}
				if c = behind[i]; c == 'n' {
					c = '\n'
				}
			}
			value.WriteByte(c)
		}
		if i == len(behind) {
			return "", fmt.Errorf("value of a label has no closing quote")
		}
		labels[name] = value.String()
		switch text = behind[i+1:]; {
		case strings.HasPrefix(text, "}"):
			return text[1:], nil
		case strings.HasPrefix(text, ","):
			text = text[1:]
		default:
			return "", fmt.Errorf("want a comma or a closing brace at %.20q", text)
		}
	}
}

// checkHistogram checks the samples of a histogram, which must be in this order: buckets by bound, sum, count.
func checkHistogram(f *Family) error {
	var count, bound float64
	buckets := 0
	for _, s := range f.Samples {
		switch s.Suffix {
		case "_bucket":
			le, err := strconv.ParseFloat(s.Labels["le"], 64)
			if err != nil || buckets > 0 && (le <= bound || s.Value < count) {
				return fmt.Errorf("bucket le=%q has count %v, after bucket le=%v with count %v", s.Labels["le"],
					s.Value, bound, count)
			}
			bound, count = le, s.Value
			buckets++
		case "_sum":
			if buckets == 0 || !math.IsInf(bound, 1) {
				return fmt.Errorf("last bucket is le=%v, want le=+Inf", bound)
			}
		case "_count":
			if s.Value != count {
				return fmt.Errorf("_count is %v, but the last bucket has %v", s.Value, count)
			}
			buckets = 0
		}
	}
	if buckets > 0 {
		return fmt.Errorf("histogram has no _count")
	}
	return nil
}

// Value returns the sum of the samples that have the given labels, which are pairs of name and value. ok is false if
// there is no such sample.
func Value(all map[string]*Family, name string, labels ...string) (sum float64, ok bool) {
	base, suffix := name, ""
	for _, s := range []string{"_bucket", "_sum", "_count"} {
		if cut, is := strings.CutSuffix(name, s); is && all[name] == nil {
			base, suffix = cut, s
		}
	}
	if all[base] == nil {
		return 0, false
	}
next:
	for _, s := range all[base].Samples {
		for i := 0; i+1 < len(labels); i += 2 {
			if s.Labels[labels[i]] != labels[i+1] {
				continue next
			}
		}
		if s.Suffix == suffix {
			sum, ok = sum+s.Value, true
		}
	}
	return sum, ok
}
