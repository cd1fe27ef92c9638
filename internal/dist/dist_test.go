package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var when = time.Unix(1_700_000_000, 0).UTC()

// files returns the contents of the files in a tar archive by name. For a symbolic link it returns the target.
func files(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if err == io.EOF {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if found[h.Name] = string(data); h.Typeflag == tar.TypeSymlink {
			found[h.Name] = h.Linkname
		}
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(when) {
			t.Errorf("%s: got owner %d:%d and time %v, want 0:0 and %v", h.Name, h.Uid, h.Gid, h.ModTime, when)
		}
	}
}

func image(t *testing.T, dir string) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := writeImage(&out, "artifactfs:test", []tree{{"amd64", dir}, {"arm64", dir}}, when); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestImage checks that every digest in the image refers to an existing blob with this digest, from the index to the
// files of the layer.
func TestImage(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "usr/bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "usr/bin/artifactfs"), []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("artifactfs", filepath.Join(dir, "usr/bin/other")); err != nil {
		t.Fatal(err)
	}
	data := image(t, dir)
	all := files(t, bytes.NewReader(data))
	read := func(d descriptor, v any) {
		t.Helper()
		name := "blobs/sha256/" + strings.TrimPrefix(d.Digest, "sha256:")
		blob, ok := all[name]
		if !ok || digest([]byte(blob)) != filepath.Base(name) || len(blob) != d.Size {
			t.Fatalf("%s: got a blob of %d bytes (there: %v), want one of %d with that digest", name, len(blob), ok, d.Size)
		}
		if v == nil {
			return
		}
		if err := json.Unmarshal([]byte(blob), v); err != nil {
			t.Fatalf("parse %s: %v", name, err)
		}
	}
	var top, inner index
	if err := json.Unmarshal([]byte(all["index.json"]), &top); err != nil {
		t.Fatal(err)
	}
	read(top.Manifests[0], &inner)
	if len(inner.Manifests) != 2 || inner.Manifests[1].Platform.Architecture != "arm64" {
		t.Fatalf("images: got %+v, want one for amd64 and one for arm64", inner.Manifests)
	}
	var m manifest
	var c config
	read(inner.Manifests[0], &m)
	read(m.Config, &c)
	read(m.Layers[0], nil)
	z, err := gzip.NewReader(strings.NewReader(all["blobs/sha256/"+strings.TrimPrefix(m.Layers[0].Digest, "sha256:")]))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if got := "sha256:" + digest(plain); got != c.RootFS.DiffIDs[0] {
		t.Errorf("digest of the layer: got %s, the configuration says %s", got, c.RootFS.DiffIDs[0])
	}
	layer := files(t, bytes.NewReader(plain))
	if layer["usr/bin/artifactfs"] != "program" || layer["usr/bin/other"] != "artifactfs" {
		t.Errorf("files of the layer: got %q", layer)
	}
	if err := os.Chtimes(filepath.Join(dir, "usr/bin/artifactfs"), time.Now(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(data, image(t, dir)) {
		t.Error("a second image of the same files differs from the first")
	}
}

// TestSBOM uses the program of the test as an example: the go command has built it, so it contains a list of modules.
func TestSBOM(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := writeSBOM(&out, program, when); err != nil {
		t.Fatal(err)
	}
	var d spdxDocument
	if err := json.Unmarshal(out.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	if d.Version != "SPDX-2.3" || len(d.Packages) < 2 || len(d.Relationships) != len(d.Packages) {
		t.Errorf("document: got %d packages and %d relationships in %s", len(d.Packages), len(d.Relationships), out.Bytes())
	}
	ids := make(map[string]bool)
	for _, p := range d.Packages {
		if ids[p.ID] {
			t.Errorf("two packages have the id %s", p.ID)
		}
		ids[p.ID] = true
	}
	if _, err := sourceDate("yesterday"); err == nil {
		t.Error("SOURCE_DATE_EPOCH=yesterday: got no error")
	}
}
