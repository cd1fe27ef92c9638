package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestClientsAreCurrent checks that the generated files in the repository are those that the generator makes of the
// present OpenAPI document.
func TestClientsAreCurrent(t *testing.T) {
	files, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("../clients", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("server/clients/%s is not what the document results in: run `go generate ./server/openapi`", name)
		}
	}
}
