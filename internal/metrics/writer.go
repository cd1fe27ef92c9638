package metrics

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// ContentType is the content type of a Writer's output.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Kind is the type of a family in the spelling of the text format.
type Kind string

const (
	Counter    Kind = "counter"
	Gauge      Kind = "gauge"
	Histograms Kind = "histogram"
)

// Label is a label of a sample. Value may be any text.
type Label struct{ Name, Value string }

// Writer writes families to an io.Writer, one after the other. The caller must write each family only once, and must
// not write two samples of a family with the same labels.
type Writer struct {
	out    *bufio.Writer
	family string // name of the family that is being written
}

// NewWriter returns a Writer that writes to out. The caller must call Flush at the end.
func NewWriter(out io.Writer) *Writer { return &Writer{out: bufio.NewWriter(out)} }

// Flush writes the buffered text and returns the first error that occurred since NewWriter.
func (w *Writer) Flush() error {
	if err := w.out.Flush(); err != nil {
		return fmt.Errorf("write metrics: %w", err)
	}
	return nil
}

var (
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// Family begins the next family. The name of a counter must end in _total.
func (w *Writer) Family(name string, kind Kind, help string) {
	w.family = name
	fmt.Fprintf(w.out, "# HELP %s %s\n# TYPE %s %s\n", name, helpEscapes.Replace(help), name, kind)
}

// Sample writes a sample of the family that Family has begun.
func (w *Writer) Sample(value float64, labels ...Label) { w.sample("", value, labels) }

// Histogram writes a histogram as samples of the family that Family has begun, in seconds.
func (w *Writer) Histogram(h *Histogram, labels ...Label) {
	labels = append(labels[:len(labels):len(labels)], Label{Name: "le"})
	le := &labels[len(labels)-1].Value
	// The count is the sum of the buckets that were read here, so that it matches them even if other goroutines call
	// Observe.
	var count uint64
	for i := range h.buckets {
		count += h.buckets[i].Load()
		*le = "+Inf"
		if i < len(bounds) {
			*le = number(bounds[i].Seconds())
		}
		w.sample("_bucket", float64(count), labels)
	}
	labels = labels[:len(labels)-1]
	w.sample("_sum", float64(h.sum.Load())/1e9, labels)
	w.sample("_count", float64(count), labels)
}

// Count returns the number of calls of Observe that h contains.
func (h *Histogram) Count() (n uint64) {
	for i := range h.buckets {
		n += h.buckets[i].Load()
	}
	return n
}

// sample writes one line of the text format: the name with a suffix, the labels, and the value.
func (w *Writer) sample(suffix string, value float64, labels []Label) {
	w.out.WriteString(w.family)
	w.out.WriteString(suffix)
	for i, l := range labels {
		w.out.WriteByte("{,"[min(i, 1)])
		w.out.WriteString(l.Name)
		w.out.WriteString(`="`)
		w.out.WriteString(labelEscapes.Replace(strings.ToValidUTF8(l.Value, "\uFFFD")))
		w.out.WriteByte('"')
	}
	if len(labels) > 0 {
		w.out.WriteByte('}')
	}
	w.out.WriteByte(' ')
	w.out.WriteString(number(value))
	w.out.WriteByte('\n')
}

// number returns a value in the text format. A whole number is written without an exponent if that is exact.
func number(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	case v == math.Trunc(v) && math.Abs(v) < 1<<53:
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
