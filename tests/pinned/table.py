"""The runs whose outcomes are written down, by name, as flags of ``sim.run``.

Clients differ in everything: in their records, and so in rates, steps, noise, orders, and the round
in which they retire.
"""

BASE = "--engine=inline --device=cpu --rounds=3 --name=run --seed=7"
CHUNKS = "--groups=2 --chunk-clients=2"
GIVEN = f"{CHUNKS} --dataset=records.npz --partition=given"
SMALL = f"{GIVEN} --batch-size=4 --steps=2 --noise-multiplier=1.3 --epsilon=30"

MECHANISMS = {
    "dpsgd": f"{SMALL}",
    "dpsgd-calibrated": f"{GIVEN} --batch-size=4 --epsilon=3 --epochs=0.8 --delta=1e-4",
    "dpsgd-retires": f"{GIVEN} --batch-size=4 --steps=2 --noise-multiplier=1 --epsilon=7 "
    "--rounds=5",
    "dpsgd-published": f"{GIVEN} --batch-size=4 --epsilon=4 --budget=published",
    "dpsgd-quantile": f"{SMALL} --clip-quantile=0.4 --clip-norm=0.5 --rounds=4",
    "dpsgd-auto": f"{SMALL} --clipping=auto --clip-norm=0.3 --optimizer=adam --lr=0.05",
    "dpsgd-decay": f"{SMALL} --noise-decay=0.9 --momentum=0.6 --keep-state --rounds=4",
    "dpsgd-fixed": f"{SMALL} --sampling=fixed",
    "dpsgd-shuffled": f"{SMALL} --sampling=shuffled --steps=3",
    "dpsgd-picked": f"{SMALL} --fraction=0.5 --rounds=5 --max-participations=2",
    "dpsgd-strict": f"{SMALL} --strict-delta --delta=1e-3 --evaluate-every=2",
    "dpsur-visible": f"{SMALL} --mechanism=dpsur --dpsur-validation-noise=0.8",
    "dpsur-selective": f"{SMALL} --mechanism=dpsur --dpsur-accounting=selective --delta=1e-3 "
    "--dpsur-loss-clip=0.05 --dpsur-beta=-0.4 --epsilon=90",
    "dpsur-every": f"{SMALL} --mechanism=dpsur --dpsur-accounting=every-trial --noise-decay=0.5 "
    "--dpsur-validation-rate=0.6 --epsilon=60 --keep-state --momentum=0.5",
    "dpis": f"{SMALL} --mechanism=dpis --rounds=4",
    "dpis-clip": f"{SMALL} --mechanism=dpis --dpis-clip=1.5 --dpis-norm-rate=0.7 --dpis-slack=3 "
    "--clip-norm=0.6 --rounds=5",
    "dpis-uniform": f"{SMALL} --mechanism=dpis --dpis-sampling=uniform",
    "dphero": f"{SMALL} --mechanism=dphero --hero-refresh=2 --steps=3",
    "dphero-isotropic": f"{SMALL} --mechanism=dphero --hero-clipping=isotropic --hero-floor=0.6 "
    "--noise-decay=0.6 --epsilon=300",
    "screening": f"{SMALL} --mechanism=screening --screening-clip=0.3 --epsilon=90",
    "screening-public": f"{SMALL} --mechanism=screening --screening-data=public "
    "--public-records=14 --screening-gain=40 --screening-stages=2",
    "dpagd": f"{GIVEN} --mechanism=dpagd --epsilon=30 --steps=2 --rounds=4 --agd-window=2",
    "dpagd-raises": f"{GIVEN} --mechanism=dpagd --epsilon=12 --steps=2 --agd-candidates=2 "
    "--agd-growth=0.5 --agd-change-clip=0.02 --rounds=5",
    "none": f"{GIVEN} --mechanism=none --batch-size=6 --epochs=1 --momentum=0.4 --lr=0.2",
}
STRATEGIES = {
    "fedadam": f"{SMALL} --strategy=fedadam --server-lr=0.1 --weighting=uniform",
    "fedyogi": f"{SMALL} --strategy=fedyogi --server-lr=0.1 --server-beta2=0.9",
    "fedadagrad": f"{SMALL} --strategy=fedadagrad --server-lr=0.1 --server-tau=0.01",
    "fedprox": f"{SMALL} --strategy=fedprox --proximal-mu=0.5 --steps=4 --lr-schedule=linear",
    "fednova": f"{SMALL} --strategy=fednova --lr-schedule=cosine --momentum=0.5".replace(
        "--steps=2", "--epochs=1"
    ),
    "fedfed": f"{SMALL} --strategy=fedfed --share-budget=0.4 --shared-weight=0.5",
    "fedfed-public": f"{SMALL} --strategy=fedfed --shared-source=public --public-records=9 "
    "--shared-batch=5",
    "fedfed-distilled": f"{GIVEN} --batch-size=4 --epsilon=40 --strategy=fedfed "
    "--shared-source=distilled --distill-rounds=2 --share-views=2 --label-epsilon=2",
    "fedfed-labels": f"{SMALL} --strategy=fedfed --shared-source=distilled --public-labels "
    "--distill-rounds=1 --share-rate=0.6 --distill-penalty=0.5 --distill-latent=3",
    "fedfed-prototypes": f"{SMALL} --strategy=fedfed --prototype-features=distilled "
    "--distill-rounds=1 --share-noise=4 --share-clip=2",
    "standardized": f"{GIVEN} --batch-size=4 --epsilon=9 "
    "--standardize=private --standardize-noise=3 --standardize-clip=2".replace("records", "photos"),
}
TRUST = {
    "server": f"{GIVEN} --trust=server --epsilon=6 --batch-size=4 --server-momentum=0.5",
    "server-client": f"{GIVEN} --trust=server --unit=client --fraction=0.6 --steps=3 "
    "--clip-norm=0.4 --noise-multiplier=1.1 --epsilon=20",
    "aggregate": f"{GIVEN} --trust=aggregate --noise-multiplier=2 --epsilon=20 --dropout=0.2 "
    "--honest=0.5 --batch-size=4",
    "aggregate-client": f"{GIVEN} --trust=aggregate --unit=client --steps=2 --clip-norm=0.4 "
    "--noise-multiplier=1.2 --epsilon=30 --aggregate-bits=40",
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
    "numbers": f"{SMALL} --loss=squared-error --lr=0.05".replace("records", "numbers"),
}
PARTITIONS = {
    "dirichlet": f"{CHUNKS} --dataset=plain.npz --clients=5 --dirichlet=0.3 --batch-size=4 "
    "--noise-multiplier=2 --validation-records=9 --evaluate-on=validation",
    "shards": f"{CHUNKS} --dataset=plain.npz --clients=4 --partition=shards --shards-per-client=3 "
    "--noise-multiplier=2 --max-records=5",
    "quantity": f"{CHUNKS} --dataset=plain.npz --clients=5 --partition=quantity --dirichlet=0.8 "
    "--noise-multiplier=2 --min-records=3 --batch-size=4",
    "iid": f"{CHUNKS} --dataset=digits --clients=3 --partition=iid --sample-rate=0.1 --epsilon=2",
    "alone": "--dataset=plain.npz --clients=1 --sample-rate=0.2 --epsilon=5 --steps=4",
}
CENTRAL = {"central": "--dataset=plain.npz --batch-size=8 --epsilon=4 --steps=3"}
RUNS: dict[str, str] = MECHANISMS | STRATEGIES | TRUST | MODELS | PARTITIONS | CENTRAL
OF_THREE = ("dpsgd", "dpsgd-shuffled", "fedfed-distilled")
"""Runs whose epsilon of three records of one person is written down, too."""
