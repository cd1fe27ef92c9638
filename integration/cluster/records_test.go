package cluster

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// operation is a record of a meter.
type operation struct {
	end      time.Time
	duration time.Duration
	kind     string
	failure  string // "": it succeeded
	name     string // of the file that was written
	sum      string // of its contents
}

// operations returns the records of the meter in a pod, oldest first.
func operations(t *testing.T, pod string) (all []operation) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(meterDir, pod+".log"))
	check(t, err)
	text = text[:bytes.LastIndexByte(text, '\n')+1] // the last line may be incomplete
	for line := range strings.Lines(string(text)) {
		end, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		duration, rest, _ := strings.Cut(rest, " ")
		kind, result, found := strings.Cut(rest, " ")
		us, err := strconv.ParseInt(end, 10, 64)
		check(t, err)
		took, err := strconv.ParseInt(duration, 10, 64)
		check(t, err)
		if !found {
			t.Fatalf("invalid record of a meter: %q", line)
		}
		o := operation{end: time.UnixMicro(us), duration: time.Duration(took) * time.Microsecond, kind: kind}
		switch f := strings.Fields(result); {
		case f[0] != "ok":
			o.failure = result
		case len(f) == 3:
			o.name, o.sum = f[1], f[2]
		}
		all = append(all, o)
	}
	return all
}

// written returns the hashes of the files that a meter has written, by name.
func written(t *testing.T, pod string) map[string]string {
	files := map[string]string{}
	for _, o := range operations(t, pod) {
		if o.name != "" {
			files[o.name] = o.sum
		}
	}
	return files
}

// measured is what the meters of several pods have recorded in a window of time.
type measured struct {
	operations, failures int
	gap                  time.Duration // longest time in one pod without a successful operation
	middle               time.Duration // median of the longest times of the pods
	slowest              string        // pod with the longest gap
	errors               map[string]int
}

func (m measured) String() string {
	s := fmt.Sprintf("%6d operations, %4d failed, longest gap %5.2f s (%s), median of the pods %5.2f s",
		m.operations, m.failures, m.gap.Seconds(), m.slowest, m.middle.Seconds())
	for text, n := range m.errors {
		s += fmt.Sprintf("\n      %d x %s", n, text)
	}
	return s
}

// measure reads the records of pods. The time between two successes, including the pause of the meter, is a gap.
func measure(t *testing.T, pods []string, begin, end time.Time) measured {
	t.Helper()
	m := measured{errors: map[string]int{}}
	var gaps []time.Duration
	for _, pod := range pods {
		last, longest := begin, time.Duration(0)
		for _, o := range operations(t, pod) {
			if o.end.Before(begin) && o.failure == "" {
				last = o.end
			}
			if o.end.Before(begin) || o.end.After(end) {
				continue
			}
			m.operations++
			if o.failure != "" {
				m.failures++
				m.errors[o.kind+": "+generic(o.failure)]++
				continue
			}
			longest, last = max(longest, o.end.Sub(last)), o.end
		}
		longest = max(longest, end.Sub(last))
		if gaps = append(gaps, longest); longest > m.gap {
			m.gap, m.slowest = longest, pod
		}
	}
	slices.SortFunc(gaps, cmp.Compare)
	m.middle = gaps[len(gaps)/2]
	return m
}

// generic returns the end of an error, without the names of files.
func generic(failure string) string {
	if i := strings.LastIndex(failure, ": "); i > 0 {
		return failure[i+2:]
	}
	return failure
}
