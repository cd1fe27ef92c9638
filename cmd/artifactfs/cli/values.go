package cli

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/metrics"
)

// Choice is a flag whose value is one of a few words.
type Choice[T ~string] struct {
	value *T
	words []T
}

// NewChoice returns a flag that sets *value to one of the words. Before it returns, NewChoice sets *value to the
// default, initial.
func NewChoice[T ~string](value *T, initial T, words ...T) *Choice[T] {
	*value = initial
	return &Choice[T]{value, words}
}

// String implements pflag.Value.
func (c *Choice[T]) String() string {
	if c.value == nil { // pflag calls String on a zero Choice in order to get the default
		return ""
	}
	return string(*c.value)
}

// Type returns the placeholder that the help text shows after the flag's name: the words of the choice.
func (c *Choice[T]) Type() string {
	names := make([]string, len(c.words))
	for i, w := range c.words {
		names[i] = string(w)
	}
	return strings.Join(names, "|")
}

// Set implements pflag.Value.
func (c *Choice[T]) Set(s string) error {
	if !slices.Contains(c.words, T(s)) {
		return fmt.Errorf("must be one of %s", c.Type())
	}
	*c.value = T(s)
	return nil
}

// Size is a flag for a number of bytes, such as 512M.
type Size int64

// String implements pflag.Value.
func (s *Size) String() string {
	if *s == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*s), 10)
}

// Type implements pflag.Value.
func (s *Size) Type() string { return "SIZE" }

// Set implements pflag.Value. It accepts the same texts as ParseSize.
func (s *Size) Set(text string) error {
	n, err := ParseSize(text)
	if err != nil {
		return err
	}
	*s = Size(n)
	return nil
}

// SizeText returns the shortest text that ParseSize parses as n bytes.
func SizeText(n int64) string {
	unit := -1
	for ; n != 0 && n%1024 == 0 && unit < 3; unit++ {
		n /= 1024
	}
	text := strconv.FormatInt(n, 10)
	if unit >= 0 {
		text += "KMGT"[unit : unit+1]
	}
	return text
}

// ParseSize parses a number of bytes with an optional unit K, M, G or T (powers of 1024; "KiB" and "KB" mean the same
// as "K").
func ParseSize(text string) (int64, error) {
	number := strings.ToUpper(strings.TrimSpace(text))
	// "K", "KB" and "KiB" are the same unit.
	number = strings.TrimSuffix(strings.TrimSuffix(number, "B"), "I")
	shift := 0
	if i := len(number) - 1; i > 0 {
		if at := strings.IndexByte("KMGT", number[i]); at >= 0 {
			number, shift = number[:i], 10*(at+1)
		}
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	n = math.Floor(n * float64(int64(1)<<shift))
	switch {
	case err != nil || math.IsNaN(n) || strings.ContainsAny(number, "XPE_"):
		// ParseFloat accepts forms such as 0x1p4 that are not sizes
		return 0, fmt.Errorf("invalid size; examples are 512M and 20G")
	case n < 1:
		return 0, fmt.Errorf("size must be at least one byte")
	case n >= 1<<62:
		return 0, fmt.Errorf("size is too large")
	}
	return int64(n), nil
}

// Count formats a number with commas between thousands.
func Count(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// Plural formats a number with its noun.
func Plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Count(n) + " " + noun + "s"
}

// BytesOf formats a number of bytes with up to three significant digits.
func BytesOf(n int64) string {
	v, unit := float64(n), 0
	for v >= 999.5 && unit < 4 {
		v, unit = v/1024, unit+1
	}
	digits := 0
	if unit > 0 && v < 99.95 {
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + " " + []string{"B", "KiB", "MiB", "GiB", "TiB"}[unit]
}

// Seconds formats a duration: in seconds with two decimals if it is shorter than a minute, otherwise like Age.
func Seconds(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return Age(d)
}

// Age formats a duration in its two largest units.
func Age(d time.Duration) string {
	d = d.Round(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

// metricsAddress is the value of the flag with the address at which metrics are served.
type metricsAddress struct {
	Text    string
	Address metrics.Address
}

// String implements pflag.Value.
func (m *metricsAddress) String() string { return m.Text }
func (m *metricsAddress) Type() string   { return "unix:PATH|HOST:PORT" }

// Set implements pflag.Value.
func (m *metricsAddress) Set(text string) (err error) {
	m.Address, err = metrics.ParseAddress(text)
	// store the absolute form, because a worker, which receives this text, may run in another directory
	m.Text = m.Address.String()
	return err
}
