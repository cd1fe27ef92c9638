package gitdir

import (
	"context"
	"os/exec"
	"strings"

	"github.com/artifactfs/artifactfs/convert"
)

// CheckoutSettings reads what the user's git configuration says about line endings, as a clone would obey it.
// Without git, or without a word there, it is git's default.
func CheckoutSettings(ctx context.Context) convert.Settings {
	var s convert.Settings
	cmd := exec.CommandContext(ctx, "git", "config", "--get-regexp", `^core\.(autocrlf|eol)$`)
	cmd.Dir = "/" // only the user's and the machine's configuration
	out, err := cmd.Output()
	if err != nil {
		return s
	}
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch strings.ToLower(key) {
		case "core.autocrlf":
			s.AutoCRLF = strings.ToLower(value)
		case "core.eol":
			s.EOL = strings.ToLower(value)
		}
	}
	return s
}
