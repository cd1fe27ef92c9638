package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The pages and the objects of Kubernetes use flags that exist.
func TestDocumentedFlagsExist(t *testing.T) {
	flags := command().Flags()
	known := []string{"help"}
	for _, page := range []string{"../../doc/kubernetes.md", "../../deploy/kubernetes/artifactfs.yaml"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, m := range regexp.MustCompile("artifactfs csi([^`\n]*)|- csi\n((?:\\s+- --[^\n]+\n)+)").FindAllStringSubmatch(string(text), -1) {
			for _, flag := range regexp.MustCompile(`--([a-z-]+)`).FindAllStringSubmatch(m[1]+m[2], -1) {
				found++
				if flags.Lookup(flag[1]) == nil && !slices.Contains(known, flag[1]) {
					t.Errorf("%s names the flag --%s, which does not exist", page, flag[1])
				}
			}
		}
		if found == 0 {
			t.Errorf("%s names no flag of the driver", page)
		}
	}
	if long := command().Long; !strings.Contains(long, "sessionRemote") {
		t.Error("the help does not list the attributes of volumes")
	}
}
