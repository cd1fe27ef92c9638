package bare

import "testing"

func FuzzConfigValue(f *testing.F) {
	for _, seed := range []string{"", `a\nb`, "a\nb", `\\`, `"`, `a\"b`, `\`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if got := unquoteConfig(quoteConfig(value)); got != value {
			t.Errorf("escaped value of %q: got %q", value, got)
		}
	})
}
