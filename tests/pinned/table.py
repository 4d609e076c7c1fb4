"""The runs whose outcomes are written down: by name, the commands that make one, in their order.

A command is a line for ``dpfed``; `outcomes` adds `BASE` to those that train. Clients differ in
everything: in their records, and so in rates, steps, noise, orders, and the round in which they
retire.
"""

BASE = "--engine=inline --device=cpu --rounds=3 --name=run --seed=7"
CHUNKS = "--groups=2 --chunk-clients=2"
GIVEN = f"run {CHUNKS} --dataset=records.npz --partition=given"
NOISE = "--noise-multiplier=1.3 --epsilon=30"
SMALL = f"{GIVEN} --batch-size=4 --steps=2 {NOISE}"
ALIKE = SMALL.replace("--batch-size=4", "--sample-rate=0.4")
"""For hidden tests: each other rate takes a second to prove."""
REPORT, VERIFY, LEDGER = "report runs/run", "account --verify runs/run", "account --ledger runs/run"
FOUR = f"{LEDGER} --delta=1e-4 --group=4"
CHECK, RESUME = "account --check runs/run", "run --resume=runs/run"

MECHANISMS = {
    "dpsgd": (SMALL, FOUR, CHECK, REPORT),
    "dpsgd-calibrated": (f"{GIVEN} --batch-size=4 --epsilon=3 --epochs=0.8 --delta=1e-4", LEDGER),
    "dpsgd-retires": (
        f"{GIVEN} --batch-size=4 --steps=2 --noise-multiplier=1 --epsilon=7 --rounds=5",
        LEDGER,
    ),
    "dpsgd-published": f"{GIVEN} --batch-size=4 --epsilon=4 --budget=published",
    "dpsgd-quantile": f"{SMALL} --clip-quantile=0.4 --clip-norm=0.5 --rounds=4",
    "dpsgd-quantile-kept": f"{SMALL} --clip-quantile=0.7 --clip-norm=0.5 --rounds=4 --keep-state "
    "--momentum=0.3 --fraction=0.7 --noise-decay=0.4",
    "dpsgd-auto": f"{SMALL} --clipping=auto --clip-norm=0.3 --optimizer=adam --lr=0.05",
    "dpsgd-decay": f"{SMALL} --noise-decay=0.9 --momentum=0.6 --keep-state --rounds=4 "
    "--lr-schedule=linear",
    "dpsgd-fixed": f"{SMALL} --sampling=fixed",
    "dpsgd-shuffled": (f"{SMALL} --sampling=shuffled --steps=3", f"{LEDGER} --group=3"),
    "dpsgd-shuffled-calibrated": f"{GIVEN} --batch-size=3 --epochs=1.5 --sampling=shuffled "
    "--epsilon=6 --fraction=0.7 --optimizer=adam --lr=0.1 --keep-state",
    "dpsgd-picked": f"{SMALL} --fraction=0.5 --rounds=5 --max-participations=2",
    "dpsgd-strict": f"{SMALL} --strict-delta --delta=1e-3 --evaluate-every=2",
    "dpsur-visible": (f"{SMALL} --mechanism=dpsur --dpsur-validation-noise=0.8", REPORT),
    "dpsur-selective": (
        f"{ALIKE} --mechanism=dpsur --dpsur-accounting=selective --delta=1e-3 "
        "--dpsur-loss-clip=0.05 --dpsur-beta=-0.4 --epsilon=90"
    ),
    "dpsur-every": f"{SMALL} --mechanism=dpsur --dpsur-accounting=every-trial --noise-decay=0.5 "
    "--dpsur-validation-rate=0.6 --epsilon=60 --keep-state --momentum=0.5",
    "dpsur-calibrated": f"{GIVEN} --mechanism=dpsur --batch-size=5 --epsilon=12 --epochs=0.6 "
    "--clip-quantile=0.6 --fraction=0.6",
    "dpis": (f"{SMALL} --mechanism=dpis --rounds=4", VERIFY, REPORT),
    "dpis-clip": f"{SMALL} --mechanism=dpis --dpis-clip=1.5 --dpis-norm-rate=0.7 --dpis-slack=3 "
    "--clip-norm=0.6 --rounds=5",
    "dpis-uniform": f"{SMALL} --mechanism=dpis --dpis-sampling=uniform",
    "dpis-calibrated": (
        f"{GIVEN} --mechanism=dpis --batch-size=6 --epsilon=9 --epochs=1 --fraction=0.7 "
        "--dpis-norm-share=0.05 --dpis-floor=0.2 --optimizer=adam --lr=0.1 --rounds=4"
    ),
    "dphero": f"{SMALL} --mechanism=dphero --hero-refresh=2 --steps=3",
    "dphero-isotropic": f"{SMALL} --mechanism=dphero --hero-clipping=isotropic --hero-floor=0.6 "
    "--noise-decay=0.6 --epsilon=300",
    "dphero-auto": f"{SMALL} --mechanism=dphero --clipping=auto --keep-state --momentum=0.4 "
    "--hero-floor=0.5 --sample-rate=0.5".replace("--batch-size=4 ", ""),
    "dphero-quantile": f"{SMALL} --mechanism=dphero --clip-quantile=0.3 --keep-state "
    "--optimizer=adam --lr=0.1",
    "screening": f"{ALIKE} --mechanism=screening --screening-clip=0.3 --epsilon=90 --rounds=2",
    "screening-public": f"{SMALL} --mechanism=screening --screening-data=public "
    "--public-records=14 --screening-gain=40 --screening-stages=2",
    "screening-unproved": f"{SMALL} --mechanism=screening --screening-clip=none --allow-unproved "
    "--forced-after=2 --screening-q0=3 --epsilon=none",
    "screening-tests": f"{ALIKE} --mechanism=screening --screening-rate=0.5 --screening-q0=2 "
    "--screening-cap-share=0.3 --epsilon=120 --momentum=0.5 --keep-state --rounds=2",
    "dpagd": (
        f"{GIVEN} --mechanism=dpagd --epsilon=30 --steps=2 --rounds=4 --agd-window=2",
        REPORT,
    ),
    "dpagd-raises": f"{GIVEN} --mechanism=dpagd --epsilon=12 --steps=2 --agd-candidates=2 "
    "--agd-growth=0.5 --agd-change-clip=0.02 --rounds=5",
    "dpagd-batches": f"{GIVEN} --mechanism=dpagd --epsilon=14 --batch-size=5 --steps=3 "
    "--agd-change-clip=none --agd-loss-clip=2 --agd-largest=2 --clipping=auto --keep-state",
    "none": (
        f"{GIVEN} --mechanism=none --batch-size=6 --epochs=1 --momentum=0.4 --lr=0.2",
        LEDGER,
        REPORT,
    ),
}
STRATEGIES = {
    "fedadam": f"{SMALL} --strategy=fedadam --server-lr=0.1 --weighting=uniform",
    "fedyogi": f"{SMALL} --strategy=fedyogi --server-lr=0.1 --server-beta2=0.9",
    "fedadagrad": f"{SMALL} --strategy=fedadagrad --server-lr=0.1 --server-tau=0.01",
    "fedprox": f"{SMALL} --strategy=fedprox --proximal-mu=0.5 --steps=4 --lr-schedule=linear",
    "fednova": f"{SMALL} --strategy=fednova --lr-schedule=cosine --momentum=0.5".replace(
        "--steps=2", "--epochs=1"
    ),
    "fednova-dpsur": f"{SMALL} --strategy=fednova --mechanism=dpsur --optimizer=adam --lr=0.1 "
    "--weighting=uniform --epsilon=60 --fraction=0.7",
    "fedprox-dpis": f"{SMALL} --strategy=fedprox --mechanism=dpis --proximal-mu=1 --steps=3",
    "mrmtl": (
        f"{SMALL} --strategy=mrmtl --proximal-mu=0.3 --fraction=0.7 --evaluation=clients "
        "--client-holdout=0.3",
        REPORT,
    ),
    "personal-layers": f"{SMALL} --model=mlp --personal-layers=3,1.bias --momentum=0.3 "
    "--keep-state --evaluation=clients --client-holdout=0.3 --dropout=0.2",
    "fedfed": (f"{SMALL} --strategy=fedfed --share-budget=0.4 --shared-weight=0.5", REPORT),
    "fedfed-public": f"{SMALL} --strategy=fedfed --shared-source=public --public-records=9 "
    "--shared-batch=5",
    "fedfed-none": f"{SMALL} --strategy=fedfed --shared-source=none --mechanism=none".replace(
        NOISE, ""
    ),
    "fedfed-distilled": (
        f"{GIVEN} --batch-size=4 --epsilon=40 --strategy=fedfed --shared-source=distilled "
        "--distill-rounds=2 --share-views=2 --label-epsilon=2",
        f"{LEDGER} --group=3",
        REPORT,
    ),
    "fedfed-labels": f"{SMALL} --strategy=fedfed --shared-source=distilled --public-labels "
    "--distill-rounds=1 --share-rate=0.6 --distill-penalty=0.5 --distill-latent=3",
    "fedfed-prototypes": f"{SMALL} --strategy=fedfed --prototype-features=distilled "
    "--distill-rounds=1 --share-noise=4 --share-clip=2",
    "fedfed-screening": f"{ALIKE} --strategy=fedfed --mechanism=screening --epsilon=90 "
    "--fraction=0.7 --shared-weight=0.4 --rounds=2",
    "standardized": f"{GIVEN} --batch-size=4 --epsilon=9 --standardize=private "
    "--standardize-noise=3 --standardize-clip=2".replace("records", "photos"),
    "standardized-fedfed": (
        f"{SMALL} --standardize=private --standardize-noise=3 --strategy=fedfed "
        "--shared-source=distilled --distill-rounds=2 --mechanism=dpis --distill-lr=0.3 "
        "--model=cnn".replace("records", "images"),
        FOUR,
    ),
}
TRUST = {
    "server": (f"{GIVEN} --trust=server --epsilon=6 --batch-size=4 --server-momentum=0.5", REPORT),
    "server-client": f"{GIVEN} --trust=server --unit=client --fraction=0.6 --steps=3 "
    "--clip-norm=0.4 --noise-multiplier=1.1 --epsilon=20",
    "server-decay": f"{GIVEN} --trust=server --unit=client --epsilon=9 --noise-decay=0.4 "
    "--clipping=auto --clip-norm=0.3 --strategy=fedprox --momentum=0.4",
    "server-turns": f"{GIVEN} --trust=server --unit=client --noise-bands=2 --steps=3 --epsilon=9 "
    "--clip-norm=0.4 --dropout=0.2",
    "trace": f"{SMALL} --dropout-trace=1-2@2;3@1,3-9",
    "server-moving": f"{GIVEN} --trust=server --unit=client --clip-quantile=0.5 --steps=3 "
    "--epsilon=9 --strategy=fedadam",
    "server-trace": f"{GIVEN} --trust=server --dropout-trace=1-2@2;3@1,3-9 --epsilon=6",
    "attackers": f"{GIVEN} --attackers=0.3 --attack-factor=-4 --noise-multiplier=1 --steps=2",
    "aggregate": (
        f"{GIVEN} --trust=aggregate --noise-multiplier=2 --epsilon=20 --dropout=0.2 --honest=0.5 "
        "--batch-size=4",
        REPORT,
    ),
    "aggregate-client": f"{GIVEN} --trust=aggregate --unit=client --steps=2 --clip-norm=0.4 "
    "--noise-multiplier=1.2 --epsilon=30 --aggregate-bits=40",
    "aggregate-calibrated": f"{GIVEN} --trust=aggregate --epsilon=5 --fraction=0.8 --honest=0.8 "
    "--batch-size=6 --strategy=fedadam --server-lr=0.05",
}
PERSONAL = "--budgets=careful=2:0.5,bold=9:0.5"
BUDGETS = {
    "budgets": (f"{GIVEN} --batch-size=4 {PERSONAL}", LEDGER, REPORT, CHECK),
    "budgets-server": f"{GIVEN} --trust=server --batch-size=4 {PERSONAL}",
    "budgets-aggregate": f"{GIVEN} --trust=aggregate --unit=client --steps=2 --clip-norm=0.4 "
    f"{PERSONAL}",
}
MODELS = {
    "mlp": f"{SMALL} --model=mlp --activation=relu",
    "cnn": f"{SMALL} --model=cnn".replace("records.npz", "images.npz"),
    "lenet": f"{SMALL} --model=lenet --steps=1".replace("records.npz", "images.npz"),
    "cnn-cifar": f"{SMALL} --model=cnn-cifar --steps=1".replace("records.npz", "photos.npz"),
    "scattering": f"{SMALL} --features=scattering --feature-groups=9".replace("records", "images"),
    "residual": f"{SMALL} --model=tests.pinned.models:Residual".replace("records", "photos"),
    "tokens": f"{SMALL} --model=tests.pinned.models:Words".replace("records", "words"),
    "several": f"{SMALL} --loss=binary-cross-entropy".replace("records", "several"),
    "numbers": (f"{SMALL} --loss=squared-error --lr=0.05".replace("records", "numbers"), REPORT),
}
PARTITIONS = {
    "dirichlet": f"run {CHUNKS} --dataset=plain.npz --clients=5 --dirichlet=0.3 --batch-size=4 "
    "--noise-multiplier=2 --validation-records=9 --evaluate-on=validation",
    "shards": f"run {CHUNKS} --dataset=plain.npz --clients=4 --partition=shards "
    "--shards-per-client=3 --noise-multiplier=2 --max-records=5",
    "quantity": f"run {CHUNKS} --dataset=plain.npz --clients=5 --partition=quantity "
    "--dirichlet=0.8 --noise-multiplier=2 --min-records=3 --batch-size=4",
    "iid": f"run {CHUNKS} --dataset=digits --clients=3 --partition=iid --sample-rate=0.1 "
    "--epsilon=2",
    "alone": "run --dataset=plain.npz --clients=1 --sample-rate=0.2 --epsilon=5 --steps=4",
}
CENTRAL = {
    "central": ("central --dataset=plain.npz --batch-size=8 --epsilon=4 --steps=3", REPORT),
    "central-adaptive": "central --dataset=plain.npz --mechanism=dpis --batch-size=8 --epsilon=9 "
    "--steps=3 --momentum=0.5",
}
_ALONE = f"run --dataset=plain.npz --clients=1 {NOISE} --batch-size=9"
_PAIR = f"{_ALONE} {CHUNKS} --partition=quantity".replace("clients=1", "clients=2")
VERIFIED = {
    "verified": (f"{_PAIR} --steps=2", VERIFY),
    "verified-fixed": (f"{_ALONE} --sampling=fixed --rounds=1", VERIFY),
    "verified-shuffled": (f"{_ALONE} --sampling=shuffled", VERIFY),
    "verified-public": (
        f"{_ALONE} --mechanism=screening --screening-data=public --public-records=9",
        VERIFY,
    ),
    "verified-shared": (
        f"{_ALONE} --strategy=fedfed --shared-source=distilled --distill-rounds=1 "
        "--public-labels --share-rate=0.7",
        VERIFY,
    ),
}
_RELEASE = f"{SMALL} --release"
RELEASES = {
    "release": (f"{_RELEASE} --fraction=0.7 --rounds=4", REPORT, CHECK),
    "release-dpsur": f"{_RELEASE} --mechanism=dpsur --clip-quantile=0.5 --model=mlp",
    "release-dpis": (f"{_RELEASE} --mechanism=dpis --dpis-clip=1.5 --keep-state", VERIFY),
    "release-dphero": f"{_RELEASE} --mechanism=dphero --clipping=auto",
    "release-screening": f"{ALIKE} --release --mechanism=screening --epsilon=90",
    "release-dpagd": f"{GIVEN} --release --mechanism=dpagd --epsilon=30 --steps=2",
    "release-fixed": f"{_RELEASE} --sampling=fixed --clip-quantile=0.6 --keep-state",
    "release-shuffled": f"{_RELEASE} --sampling=shuffled --momentum=0.5",
    "release-shared": (
        f"{_RELEASE} --strategy=fedfed --shared-source=distilled --distill-rounds=1 "
        "--share-rate=0.7",
        REPORT,
    ),
    "release-classes": f"{_RELEASE} --strategy=fedfed --share-noise=4",
    "release-server": f"{GIVEN} --release --trust=server --epsilon=6 --batch-size=4",
    "release-aggregate": f"{GIVEN} --release --trust=aggregate --epsilon=6 --batch-size=4 "
    "--dropout=0.2 --honest=0.5",
    "release-cnn": f"{_RELEASE} --model=cnn".replace("records", "images"),
    "release-tokens": f"{_RELEASE} --model=tests.pinned.models:Words".replace("records", "words"),
    "release-residual": f"{_RELEASE} --model=tests.pinned.models:Residual".replace(
        "records", "photos"
    ),
}
_CUT = f"{SMALL} --metric=tests.pinned.models:cut --keep-state --momentum=0.4 --rounds=4"
CUT = {
    "cut": (_CUT, LEDGER, VERIFY, REPORT, CHECK, RESUME, LEDGER),
    "cut-dpis": (f"{_CUT} --mechanism=dpis", LEDGER, VERIFY, RESUME),
    "cut-fedfed": (f"{_CUT} --strategy=fedfed", FOUR, RESUME, FOUR),
}
SOURCES = {
    "table": f"run {CHUNKS} --dataset=patients.csv --label-column=outcome "
    f"--client-column=hospital --columns=patients.toml --batch-size=4 {NOISE}",
    "codes": f"run {CHUNKS} --dataset=patients.csv --label-column=outcome "
    f"--client-column=hospital --categories=codes --batch-size=4 --epsilon=5",
    "function": f"run {CHUNKS} --dataset=tests.pinned.models:spread --partition=given "
    f"--batch-size=4 {NOISE} --strategy=fedyogi",
}
OTHERS = {
    "compared": (
        SMALL,
        f"{SMALL} --name=other --mechanism=dpsur --delta=1e-6 --rounds=2",
        "report runs/run runs/other",
    ),
    "audited": (f"audit {SMALL[4:]} --canaries=24", REPORT),
    "audited-black-box": f"audit {SMALL[4:]} --canaries=12 --black-box --confidence=0.9",
    "audited-dpsur": f"audit {SMALL[4:]} --canaries=24 --mechanism=dpsur",
    "attacked": "attack --dataset=plain.npz --rounds=2 --steps=2 --batch-size=none "
    "--sample-rate=0.5 --delta=1e-3 --epsilon=4 --mechanism=dphero --targets=1 --models=8 "
    "--records=24",
    "priced": tuple(
        f"account {words}"
        for words in (
            "dpsgd --sample-rate=0.1 --noise-multiplier=1.1 --steps=100 --orders=2,8.5",
            "dpsgd --batch-size=8 --records=100 --sampling=fixed --noise-multiplier=3 --steps=9",
            "dpsgd --batch-size=8 --records=100 --sampling=shuffled --epsilon=3 --steps=9",
            "dpsur --sample-rate=0.1 --epsilon=3 --steps=20 --trials=40 --json",
            "dpsur --sample-rate=0.1 --noise-multiplier=2 --steps=20 --dpsur-accounting=selective",
            "dpis --sample-rate=0.1 --records=200 --epsilon=3 --steps=20 --norm-sum=40",
            "dphero --sample-rate=0.1 --noise-multiplier=2 --steps=20 --eigenvalues=3,2,1 "
            "--hero-clipping=isotropic",
            "screening --sample-rate=0.1 --noise-multiplier=2 --steps=5",
            "screening --sample-rate=0.1 --noise-multiplier=2 --steps=5 --trials=9 "
            "--screening-data=public",
            "dpagd --sample-rate=1 --epsilon=3 --steps=5",
            "fedfed --share-noise=3 --share-views=2 --label-epsilon=1",
            "--records=30,40,50 --clients=3 --epsilon=4 --rounds=5 --batch-size=6 --tries=10",
            "--records=60 --clients=4 --trust=server --unit=client --epsilon=4 --rounds=5",
            "--records=60 --clients=4 --strategy=fedfed --standardize=private --epsilon=4 "
            "--dataset=records.npz --orders=3",
        )
    ),
}
SHOWN = ("dpsgd", "dpis", "central", "release", "fedfed-distilled")
"""Runs whose model card is written down, and the settings in their report."""
RUNS: dict[str, str | tuple[str, ...]] = {
    **MECHANISMS,
    **STRATEGIES,
    **TRUST,
    **BUDGETS,
    **MODELS,
    **PARTITIONS,
    **CENTRAL,
    **VERIFIED,
    **RELEASES,
    **CUT,
    **SOURCES,
    **OTHERS,
    "gradients-tapped": (),
    "gradients-general": (),
}
PRICED = (
    "dpsgd-calibrated",
    "dpsgd-shuffled-calibrated",
    "dpsur-calibrated",
    "dpis-calibrated",
    "dphero",
    "screening-tests",
    "dpagd",
    "fedfed-distilled",
    "standardized-fedfed",
    "server-decay",
    "aggregate-calibrated",
    "budgets",
    "central",
)
"""Runs whose price, told before they begin, is written down, too."""
