package main

import (
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

func TestPrintSwitch(t *testing.T) {
	for _, c := range []struct {
		reply control.SwitchReply
		want  string
	}{
		{control.SwitchReply{From: "main", Branch: "next"}, "Switched to branch 'next'\n"},
		{control.SwitchReply{From: "main", Branch: "main"}, "Already on 'main'\n"},
		{control.SwitchReply{From: "main", Branch: "next", Created: true, Upstream: "origin/next"},
			"Switched to a new branch 'next'\nbranch 'next' set up to track 'origin/next'.\n"},
		{control.SwitchReply{Commit: "0123456789abcdef", Kept: []string{"a"}},
			"changed at the same time, so left unchanged: a\nHEAD is now at 0123456789ab\n"},
	} {
		var b strings.Builder
		printSwitch(&b, c.reply)
		if b.String() != c.want {
			t.Errorf("%+v prints %q, want %q", c.reply, b.String(), c.want)
		}
	}
}
