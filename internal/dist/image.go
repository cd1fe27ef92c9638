package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// tree is the file tree of an image for one architecture, by Go's name of it.
type tree struct{ arch, dir string }

// The types of the OCI image specification, version 1.1 (opencontainers/image-spec: descriptor.md, manifest.md, config.md,
// image-index.md), as far as an image with one layer needs them.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// platform is the processor architecture and the operating system of an image, both by Go's names.
type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// descriptor refers to a blob of the layout: its type, its digest as "sha256:" and hexadecimal
// digits, and its size in bytes.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// index lists the manifests of an image, one for each platform, or, in index.json, the indexes of
// the archive.
type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

// manifest lists the configuration and the layers of the image for one platform.
type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

// config is the configuration of an image. The capitalized names are those of the specification.
type config struct {
	platform
	Created time.Time `json:"created"`
	Config  struct {
		Entrypoint []string `json:"Entrypoint"`
		Env        []string `json:"Env"`
	} `json:"config"`
	// RootFS lists the digests of the layers before compression.
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// layout collects the blobs of an image; its files are those of an OCI image layout.
type layout struct{ files map[string][]byte }

// digest returns the SHA-256 of data in hexadecimal.
func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// blob adds data to the layout under its digest and returns a descriptor of it.
func (l *layout) blob(mediaType string, data []byte) descriptor {
	name := digest(data)
	l.files["blobs/sha256/"+name] = data
	return descriptor{MediaType: mediaType, Digest: "sha256:" + name, Size: len(data)}
}

// json adds v, encoded as JSON, to the layout.
func (l *layout) json(mediaType string, v any) (descriptor, error) {
	data, err := json.Marshal(v)
	return l.blob(mediaType, data), err
}

// writeImage writes an archive of an OCI image layout with an image for each tree, which `podman load`, `docker load` and
// `skopeo copy oci-archive:FILE` read.
func writeImage(w io.Writer, tag string, trees []tree, when time.Time) error {
	l := &layout{files: make(map[string][]byte)}
	all := index{SchemaVersion: 2, MediaType: typeIndex}
	for _, t := range trees {
		d, err := l.add(t, when)
		if err != nil {
			return fmt.Errorf("write image for %s: %w", t.arch, err)
		}
		all.Manifests = append(all.Manifests, d)
	}
	// The index of the platforms is a blob. index.json refers to it with the tag as an annotation,
	// under which the image is loaded.
	inner, err := l.json(typeIndex, all)
	if err != nil {
		return err
	}
	inner.Annotations = map[string]string{"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": tag}
	top, err := json.Marshal(index{SchemaVersion: 2, MediaType: typeIndex, Manifests: []descriptor{inner}})
	if err != nil {
		return err
	}
	l.files["index.json"] = top
	l.files["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	return l.write(w, when)
}

// add puts an image with the files of t into the layout and returns its manifest.
func (l *layout) add(t tree, when time.Time) (descriptor, error) {
	// The layer is needed twice: its digest before compression is in the configuration, the
	// compressed one in the manifest.
	var plain bytes.Buffer
	if err := writeTree(&plain, t.dir, when); err != nil {
		return descriptor{}, err
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression) // its header has neither a name nor a time
	if err != nil {
		return descriptor{}, err
	}
	if _, err := z.Write(plain.Bytes()); err != nil {
		return descriptor{}, err
	}
	if err := z.Close(); err != nil {
		return descriptor{}, err
	}
	c := config{platform: platform{t.arch, "linux"}, Created: when}
	c.Config.Entrypoint = []string{"/usr/bin/artifactfs"}
	c.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{"sha256:" + digest(plain.Bytes())}
	configuration, err := l.json(typeConfig, c)
	if err != nil {
		return descriptor{}, err
	}
	d, err := l.json(typeManifest, manifest{2, typeManifest, configuration, []descriptor{l.blob(typeLayer, packed.Bytes())}})
	d.Platform = &c.platform
	return d, err
}

// write writes the layout as a tar archive.
func (l *layout) write(w io.Writer, when time.Time) error {
	var names []string
	for name := range l.files {
		names = append(names, name)
	}
	// Maps have no order, and the same input must produce the same bytes.
	slices.Sort(names)
	out := tar.NewWriter(w)
	for _, name := range names {
		h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(l.files[name])), ModTime: when, Format: tar.FormatPAX}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := out.Write(l.files[name]); err != nil {
			return err
		}
	}
	return out.Close()
}

// writeTree writes the files below dir as a tar archive: all belong to root, and directories come before their files.
func writeTree(w io.Writer, dir string, when time.Time) error {
	out := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		h := &tar.Header{Name: filepath.ToSlash(name), Mode: int64(info.Mode().Perm()), ModTime: when, Format: tar.FormatPAX}
		switch {
		case e.IsDir():
			h.Typeflag, h.Name, h.Mode = tar.TypeDir, h.Name+"/", 0o755 // whatever the umask of the build was
		case info.Mode()&fs.ModeSymlink != 0:
			h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
			if h.Linkname, err = os.Readlink(path); err != nil {
				return err
			}
		default:
			h.Typeflag, h.Size = tar.TypeReg, info.Size()
		}
		// Only a regular file has contents in the archive.
		if err := out.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(out, f)
		return err
	})
	if err != nil {
		return err
	}
	return out.Close()
}
