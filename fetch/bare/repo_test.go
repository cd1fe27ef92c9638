package bare

import (
	"testing"

	"github.com/artifactfs/artifactfs/git/gitcmd"
)

func FuzzConfigValue(f *testing.F) {
	for _, seed := range []string{"", `a\nb`, "a\nb", `\\`, `"`, `a\"b`, `\`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if got := unquoteConfig(gitcmd.Quote(value)); got != value {
			t.Errorf("escaped value of %q: got %q", value, got)
		}
	})
}
