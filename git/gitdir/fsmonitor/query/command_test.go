package query

import (
	"strings"
	"testing"
)

func TestCommand(t *testing.T) {
	for command, want := range map[string]bool{
		"":                           true,
		"git status":                 false,
		"git -C d mv a b":            true,
		"/usr/lib/git-core/git-rm a": true,
	} {
		c := Command{argv: strings.Fields(command)}
		if command == "" {
			c = Find(0)
		}
		if got := c.StagesModules(); got != want {
			t.Errorf("command %q: got %v, want %v", command, got, want)
		}
	}
}
