package read

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseRuns(t *testing.T) {
	const head = "diff --git a/1 b/2\nindex 1..2 100644\n--- a/1\n+++ b/2\n"
	for _, c := range []struct{ patch, want string }{
		{"", "[]"},
		{"Binary files a/1 and b/2 differ\n", "[]"},
		{head + "@@ -3,3 +3,4 @@ func f() {\n a\n-b\n+c\n+d\n e\n", "[{true 2 2 1 1 2} {false 3 3 1 2 0} {true 4 5 1 1 0}]"},
		// Lines that look like the header of a patch, and a file without a newline at its end.
		{head + "@@ -1,2 +1 @@\n--- x\n-y\n\\ No newline at end of file\n++++ z\n", "[{true 0 0 0 0 0} {false 0 0 2 1 0}]"},
		// A second hunk, and lines that are added to an empty range.
		{head + "@@ -1 +1 @@\n-a\n+b\n@@ -9,0 +10,2 @@\n+c\n+d\n",
			"[{true 0 0 0 0 0} {false 0 0 1 1 0} {true 9 9 0 0 8} {false 9 9 0 2 0}]"},
	} {
		got, err := parseRuns(c.patch)
		if err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("runs of %q: got %v, %v, want %s", c.patch, got, err, c.want)
		}
	}
	for _, bad := range []string{"@@\n", "@@ -x +1 @@\n", "@@ -1 +-1 @@\n", "@@ 1 2 @@\n"} {
		if got, err := parseRuns(head + bad); err == nil {
			t.Errorf("runs of %q: got %v, want an error", bad, got)
		}
	}
}

func FuzzParseRuns(f *testing.F) {
	f.Add("@@ -3,3 +3,4 @@ func f() {\n a\n-b\n+c\n+d\n e\n")
	f.Add("@@ -9,0 +10,2 @@\n+c\n\n-\n")
	f.Fuzz(func(t *testing.T, patch string) {
		runs, err := parseRuns(patch)
		lines := strings.Count(patch, "\n") + 1
		for _, r := range runs {
			if err == nil && (r.Gone > lines || r.Came > lines || r.Same && r.Gone != r.Came) {
				t.Errorf("run %+v of %q", r, patch)
			}
		}
	})
}
